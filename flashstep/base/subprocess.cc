#include "flashstep/base/subprocess.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "flashstep/base/signals.h"
#include "flashstep/error.h"

extern char** environ;

namespace flashstep {
namespace {

constexpr int kPatienceMs = 200;  // after which signals are asked for

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// Closes what it still has at its end.
struct Pipe {
  int reading = -1, writing = -1;
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_descriptor(reading);
    close_descriptor(writing);
  }
  void open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_errno(errno, "[launch] cannot make a pipe");
    reading = ends[0], writing = ends[1];
  }
  // Sockets instead of a pipe: writing to a process that died then fails without a signal.
  void open_as_sockets() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw_errno(errno, "[launch] cannot make a pair of sockets");
    reading = ends[0], writing = ends[1];
  }
};

// The strings' addresses, as exec() wants them.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// What a child gets between fork() and exec(), where nothing may allocate or lock.
struct Descriptors {
  int in, out, err;  // -1: nothing
  int failure;
};
[[noreturn]] void become(char* const* arguments, char* const* variables,
                         const Descriptors& descriptors, int death_signal, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(1);  // it died before it could be watched
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);  // an ignored signal stays ignored through exec()
  signal(SIGXFSZ, SIG_DFL);
  const int nothing = open("/dev/null", O_RDWR);
  dup2(descriptors.in >= 0 ? descriptors.in : nothing, STDIN_FILENO);
  dup2(descriptors.out, STDOUT_FILENO);
  dup2(descriptors.err >= 0 ? descriptors.err : nothing, STDERR_FILENO);
  execvpe(arguments[0], arguments, variables);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(descriptors.failure, &error, sizeof error);
  _exit(127);
}

// What exec() says of a name that is none of a program's.
bool names_no_program(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == ENOEXEC ||
         error == ELOOP || error == ENAMETOOLONG;
}

}  // namespace

Child start_child(const ChildOptions& options) {
  require(!options.command.empty(), "[launch] expected a command, got none");
  std::vector<std::string> assignments;
  for (const auto& [name, value] : options.variables) assignments.push_back(name + "=" + value);
  const std::vector<char*> arguments = pointers(options.command), variables = pointers(assignments);
  Pipe in, out, err, failure;
  if (options.has_input) in.open_as_sockets();
  out.open();
  if (options.errors == Errors::kApart) err.open();
  failure.open();
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    const int errors = options.errors == Errors::kMerged ? out.writing : err.writing;
    become(arguments.data(), assignments.empty() ? environ : variables.data(),
           {in.reading, out.writing, errors, failure.writing}, options.death_signal, parent);
  }
  int error = child.pid < 0 ? errno : 0;
  for (int* end : {&in.reading, &out.writing, &err.writing, &failure.writing})
    close_descriptor(*end);
  // Ends at once when exec() succeeds: the other end closes itself then.
  while (error == 0 && read(failure.reading, &error, sizeof error) < 0 && errno == EINTR) {
  }
  if (error != 0) {
    if (child.pid > 0) waitpid(child.pid, nullptr, 0);
    const std::string sentence = str("[launch] cannot start ", options.command[0]);
    if (names_no_program(error)) throw NoProgram(str(sentence, ": ", std::strerror(error)));
    throw_errno(error, sentence);
  }
  for (const int end : {out.reading, err.reading}) {
    if (end >= 0) fcntl(end, F_SETFL, O_NONBLOCK);
  }
  child.in = std::exchange(in.writing, -1);
  child.out = std::exchange(out.reading, -1);
  child.err = std::exchange(err.reading, -1);
  return child;
}

std::string describe_end(int wait_status) {
  if (WIFEXITED(wait_status)) return str("ended with exit code ", WEXITSTATUS(wait_status));
  const char* name = sigabbrev_np(WTERMSIG(wait_status));
  return str("was killed by SIG", name ? name : std::to_string(WTERMSIG(wait_status)));
}

int exit_code(int wait_status) { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1; }

std::vector<std::string> Subprocess::Stream::take() {
  char bytes[65536];
  ssize_t count = -1;
  while (open &&
         ((count = read(descriptor, bytes, sizeof bytes)) > 0 || (count < 0 && errno == EINTR))) {
    if (count > 0) begun.append(bytes, static_cast<size_t>(count));
  }
  if (count == 0) open = false;
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t end; (end = begun.find('\n', start)) != std::string::npos; start = end + 1) {
    lines.push_back(begun.substr(start, end - start));
  }
  begun.erase(0, start);
  return lines;
}

Subprocess::Subprocess(const ChildOptions& options)
    : death_signal_(options.death_signal), child_(start_child(options)) {
  out_ = {child_.out, {}, true};
  err_ = {child_.err, {}, child_.err >= 0};
}

Subprocess::~Subprocess() {
  close_input();
  if (!ended_) {
    kill(death_signal_);
    while (waitpid(child_.pid, &status_, 0) < 0 && errno == EINTR) {
    }
  }
  close_descriptor(child_.out);
  close_descriptor(child_.err);
}

void Subprocess::kill(int signal) const {
  if (!ended_) ::kill(child_.pid, signal);
}

bool Subprocess::wait(int milliseconds) {
  if (ended_) return false;
  pollfd sources[] = {{out_.open ? out_.descriptor : -1, POLLIN, 0},
                      {err_.open ? err_.descriptor : -1, POLLIN, 0}};
  poll(sources, 2, milliseconds);
  rusage used = {};
  ended_ = wait4(child_.pid, &status_, WNOHANG, &used) == child_.pid;
  if (ended_) peak_resident_kib_ = used.ru_maxrss;
  return !ended_;
}

std::vector<std::string> Subprocess::take_lines() { return out_.take(); }
std::vector<std::string> Subprocess::take_errors() { return err_.take(); }

bool Subprocess::write_line(const std::string& line) {
  const std::string sent = line + "\n";
  size_t done = 0;
  while (done < sent.size()) {
    const ssize_t count = send(child_.in, sent.data() + done, sent.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

std::vector<std::string> Subprocess::lines_to_end() {
  std::vector<std::string> all = std::move(read_ahead_);
  for (bool running = true; running;) {
    check_interrupted("interrupted");
    running = wait(kPatienceMs);
    take_errors();
    std::ranges::move(take_lines(), std::back_inserter(all));
  }
  return all;
}

std::optional<std::string> Subprocess::read_line() {
  bool running = true;
  while (read_ahead_.empty()) {
    read_ahead_ = take_lines();
    if (!read_ahead_.empty()) break;
    if (!running || !out_.open) return std::nullopt;
    check_interrupted("interrupted");
    running = wait(kPatienceMs);
  }
  std::string line = std::move(read_ahead_.front());
  read_ahead_.erase(read_ahead_.begin());
  return line;
}

void Subprocess::close_input() { close_descriptor(child_.in); }

}  // namespace flashstep
