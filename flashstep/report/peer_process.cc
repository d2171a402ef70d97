#include "flashstep/report/peer_process.h"

#include <cerrno>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flashstep/error.h"

extern char** environ;

namespace flashstep::report {

PeerProcess::PeerProcess(const std::vector<std::string>& command) {
  require(!command.empty(), "[peer] expected a command, got none");
  // Sockets instead of pipes: writing to a process that died then fails without a signal.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw_errno(errno, "[peer] socketpair");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    close(socket_);
    throw_errno(error, str("[peer] cannot start ", command[0]));
  }
}

PeerProcess::~PeerProcess() {
  close(socket_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<std::string> PeerProcess::ask(const std::string& line) {
  const std::string sent = str(line, "\n");
  size_t done = 0;
  while (done < sent.size()) {
    const ssize_t count = send(socket_, sent.data() + done, sent.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    done += static_cast<size_t>(count);
  }
  return read_line();
}

std::optional<std::string> PeerProcess::read_line() {
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    buffer_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace flashstep::report
