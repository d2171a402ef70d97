#include "flashstep/comm/child.h"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

struct Pipe {
  int reading = -1, writing = -1;
};

Pipe open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno(errno, "[launch] cannot make a pipe");
  return {ends[0], ends[1]};
}

void close_descriptor(int descriptor) {
  if (descriptor >= 0) ::close(descriptor);
}

// The strings' addresses, as exec() wants them.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Between fork() and exec(): nothing here may allocate or lock.
[[noreturn]] void become(char* const* arguments, char* const* variables, int out, int err,
                         int inherited, int death_signal, pid_t parent, int errors) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(1);  // it died before it could be watched
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);  // an ignored signal stays ignored through exec()
  signal(SIGXFSZ, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
  execvpe(arguments[0], arguments, variables);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(errors, &error, sizeof error);
  _exit(127);
}

}  // namespace

FreePort::FreePort() {
  descriptor_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) throw_errno(errno, "[launch] cannot open a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, generic, size) != 0 || listen(descriptor_, SOMAXCONN) != 0 ||
      getsockname(descriptor_, generic, &size) != 0) {
    const int error = errno;
    close();
    throw_errno(error, "[launch] cannot listen on a free port of 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
}

void FreePort::close() {
  close_descriptor(descriptor_);
  descriptor_ = -1;
}

Variables rank_variables(Variables base, int rank, int world_size, const FreePort& port) {
  // Another launcher around this one has nothing to say about our ranks.
  for (auto entry = base.begin(); entry != base.end();) {
    entry = entry->first.starts_with("TORCHELASTIC_") ? base.erase(entry) : std::next(entry);
  }
  base["RANK"] = base["LOCAL_RANK"] = std::to_string(rank);
  base["WORLD_SIZE"] = base["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(port.port());
  base["FLASHSTEP_LAUNCH"] = "1";
  base.erase("FLASHSTEP_STORE_DESCRIPTOR");
  if (rank == 0) base["FLASHSTEP_STORE_DESCRIPTOR"] = std::to_string(port.descriptor());
  return base;
}

Child start_child(const ChildOptions& options) {
  require(!options.command.empty(), "[launch] expected a command, got none");
  std::vector<std::string> assignments;
  for (const auto& [name, value] : options.variables) assignments.push_back(name + "=" + value);
  const std::vector<char*> arguments = pointers(options.command), variables = pointers(assignments);
  const Pipe out = open_pipe(), err = options.merge_output ? Pipe() : open_pipe();
  const Pipe errors = open_pipe();
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    become(arguments.data(), variables.data(), out.writing,
           options.merge_output ? out.writing : err.writing, options.inherited,
           options.death_signal, parent, errors.writing);
  }
  int error = child.pid < 0 ? errno : 0;
  for (const int end : {out.writing, err.writing, errors.writing}) close_descriptor(end);
  // Ends at once when exec() succeeds: the other end closes itself then.
  while (error == 0 && read(errors.reading, &error, sizeof error) < 0 && errno == EINTR) {
  }
  close_descriptor(errors.reading);
  if (error != 0) {
    if (child.pid > 0) waitpid(child.pid, nullptr, 0);
    close_descriptor(out.reading);
    close_descriptor(err.reading);
    throw_errno(error, str("[launch] cannot start ", options.command[0]));
  }
  for (const int end : {out.reading, err.reading}) {
    if (end >= 0) fcntl(end, F_SETFL, O_NONBLOCK);
  }
  child.out = out.reading;
  child.err = err.reading;
  return child;
}

std::string describe_end(int wait_status) {
  if (WIFEXITED(wait_status)) return str("ended with exit code ", WEXITSTATUS(wait_status));
  const char* name = sigabbrev_np(WTERMSIG(wait_status));
  return str("was killed by SIG", name ? name : std::to_string(WTERMSIG(wait_status)));
}

int exit_code(int wait_status) { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1; }

}  // namespace flashstep
