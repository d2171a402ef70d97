#include "flashstep/comm/launch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "flashstep/comm/child.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSameSignal = std::chrono::milliseconds(500);  // sooner it is not a second one
constexpr double kLastWordsSeconds = 2;  // of ranks that are asked a second time

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2};

// Those that ask ranks to save and end.
bool asks_for_an_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGXCPU;
}

// A blocked signal comes through signalfd even where it is ignored, as nohup asks for.
bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// 0, or why they could not be written.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // somebody made the terminal that we share non-blocking
      pollfd room = {descriptor, POLLOUT, 0};
      poll(&room, 1, -1);
      continue;
    }
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

// One stream of a rank's output, passed on in whole lines.
struct Stream {
  int from = -1, to = -1;
  std::string label, begun, last_line;
  bool to_terminal = false;  // a closed one is none any more: known from the start
  int lost = 0;              // why not all of it could be written

  // What has come; a begun line only when `whole` or at the end of the stream, which is false.
  bool pass_on(bool whole) {
    char bytes[65536];
    ssize_t count;
    while ((count = read(from, bytes, sizeof bytes)) > 0 || (count < 0 && errno == EINTR)) {
      if (count > 0) begun.append(bytes, static_cast<size_t>(count));
    }
    const bool open = count < 0 && errno == EAGAIN;
    if ((whole || !open) && !begun.empty() && begun.back() != '\n') begun += '\n';
    std::string lines;
    size_t start = 0;
    for (size_t end; (end = begun.find('\n', start)) != std::string::npos; start = end + 1) {
      if (end > start) last_line = begun.substr(start, end - start);
      lines += label;
      lines.append(begun, start, end + 1 - start);
    }
    begun.erase(0, start);
    const int error = write_all(to, lines);
    // Whoever read our output may leave, or close the terminal: the ranks' work goes on, and that
    // is no failure.
    const bool nobody_reads = error == EPIPE || (error == EIO && to_terminal);
    if (lost == 0 && !nobody_reads) lost = error;
    return open;
  }
};

struct Rank {
  Child child;
  Stream out, err;
  bool ended = false;
  int status = 0;
};

// While it lives, a write to a closed pipe is an error like others, not this process's end.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~NoPipeSignal() { sigaction(SIGPIPE, &before_, nullptr); }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  struct sigaction before_;
};

// Blocks signals while it lives, and reads them from a descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : kForwarded) {
      if (signal == SIGINT || signal == SIGTERM || !is_ignored(signal)) sigaddset(&signals, signal);
    }
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &before_);
    descriptor_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (descriptor_ < 0) {
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      throw_errno(errno, "[launch] signalfd");
    }
  }
  ~SignalQueue() {
    ::close(descriptor_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_; }
  // The next signal, 0 when there is none.
  int next() {
    signalfd_siginfo info;
    return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  int descriptor_ = -1;
  sigset_t before_;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options), ranks_(options.ranks) {}
  ~Launcher();
  int run();

 private:
  void start();
  void signal_all(int signal);
  void stop_others();
  void wait_for_news();
  void take_signals();
  bool is_second(int signal);
  void kill_after(double seconds);
  void reap();
  void judge(int rank);
  std::string last_words(const Rank& rank) const;
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }

  const LaunchOptions& options_;
  const NoPipeSignal no_pipe_signal_;
  SignalQueue signals_;
  const FreePort port_;
  std::vector<Rank> ranks_;
  int forwarded_ = 0;         // the last that came and asks for an end
  int code_ = 0;              // of the first rank that failed
  bool interrupted_ = false;  // a rank ended because of forwarded_
  bool cut_short_ = false;    // and was killed by it: it was not ready to save anything
  std::map<int, Clock::time_point> first_came_;  // of SIGINT and SIGTERM
  bool stopping_ = false, killed_ = false;
  std::optional<Clock::time_point> kill_at_;
};

Launcher::~Launcher() {
  for (Rank& rank : ranks_) {
    if (rank.child.pid > 0 && !rank.ended) {
      kill(-rank.child.pid, SIGKILL);
      waitpid(rank.child.pid, nullptr, 0);
    }
    for (const int descriptor : {rank.child.out, rank.child.err}) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }
}

void Launcher::start() {
  Variables base = variables_of_process();
  // Ranks that each use all cores take them from each other.
  const unsigned share = std::max(1u, std::thread::hardware_concurrency() / options_.ranks);
  base.emplace("OMP_NUM_THREADS", std::to_string(share));
  for (int i = 0; i < options_.ranks; ++i) {
    ChildOptions child;
    child.command = options_.command;
    child.variables = rank_variables(base, i, options_.ranks, port_.number());
    child.death_signal = SIGTERM;
    Rank& rank = ranks_[i];
    rank.child = start_child(child);
    const std::string label = options_.label ? str("[rank ", i, "] ") : "";
    rank.out = {rank.child.out, options_.out, label, "", "", isatty(options_.out) == 1, 0};
    rank.err = {rank.child.err, options_.err, label, "", "", isatty(options_.err) == 1, 0};
  }
}

void Launcher::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) kill(-rank.child.pid, signal);
  }
}

void Launcher::stop_others() {
  if (stopping_) return;
  stopping_ = true;
  kill_after(options_.stop_seconds);
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped rank takes no SIGTERM
}

void Launcher::kill_after(double seconds) {
  const auto at = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  kill_at_ = std::min(kill_at_.value_or(at), at);
}

void Launcher::wait_for_news() {
  std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (const Stream* stream : {&rank.out, &rank.err}) {
      if (stream->from >= 0) sources.push_back({stream->from, POLLIN, 0});
    }
  }
  int timeout_ms = -1;
  if (kill_at_ && !killed_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now());
    timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
  }
  poll(sources.data(), sources.size(), timeout_ms);
  for (Rank& rank : ranks_) {
    for (Stream* stream : {&rank.out, &rank.err}) {
      if (stream->from >= 0 && !stream->pass_on(false)) stream->from = -1;
    }
  }
  if (kill_at_ && !killed_ && Clock::now() >= *kill_at_) {
    killed_ = true;
    if (!stopping_) interrupted_ = cut_short_ = true;
    signal_all(SIGKILL);
  }
}

// Of the two that people send.
bool Launcher::is_second(int signal) {
  if (signal != SIGINT && signal != SIGTERM) return false;
  const auto [first, is_new] = first_came_.emplace(signal, Clock::now());
  return !is_new && Clock::now() - first->second >= kSameSignal;
}

// The first one waits for as long as ranks need to save. By the second one they end at once, or are
// killed.
void Launcher::take_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) continue;  // reap() looks at everyone
    if (asks_for_an_end(signal)) forwarded_ = signal;
    signal_all(signal);
    if (is_second(signal)) kill_after(std::min(options_.stop_seconds, kLastWordsSeconds));
  }
}

std::string Launcher::last_words(const Rank& rank) const {
  constexpr std::string_view kOurs = "flashstep: ";
  std::string words = rank.err.last_line;
  if (words.starts_with(kOurs)) words.erase(0, kOurs.size());
  return words.empty() ? "" : ": " + words;
}

void Launcher::judge(int index) {
  const Rank& rank = ranks_[index];
  const int code = exit_code(rank.status);
  if (code == 0 || stopping_) return;
  const bool by_signal = WIFSIGNALED(rank.status) && WTERMSIG(rank.status) == forwarded_;
  // Whichever of several signals a rank has heard.
  if (forwarded_ != 0 && (by_signal || (code > 128 && asks_for_an_end(code - 128)))) {
    interrupted_ = true;
    cut_short_ = cut_short_ || by_signal;
    return;
  }
  if (cut_short_) return;  // it lost a rank that the user has ended
  code_ = code;
  stop_others();
  const bool alone = all_ended();
  write_all(options_.err, str("flashstep: [launch] rank ", index, " of ", options_.ranks,
                              " (process ", rank.child.pid, ") ", describe_end(rank.status),
                              last_words(rank), alone ? "" : "; stopping the other ranks", "\n"));
}

void Launcher::reap() {
  for (int i = 0; i < options_.ranks; ++i) {
    Rank& rank = ranks_[i];
    if (rank.ended || waitpid(rank.child.pid, &rank.status, WNOHANG) != rank.child.pid) continue;
    rank.ended = true;
    for (Stream* stream : {&rank.out, &rank.err}) {
      if (stream->from >= 0) stream->pass_on(true);
      stream->from = -1;  // what its own children may still print is not awaited
    }
    judge(i);
  }
}

int Launcher::run() {
  start();
  while (!all_ended()) {
    wait_for_news();
    take_signals();
    reap();
  }
  if (code_ != 0) return code_;
  if (interrupted_) return 128 + forwarded_;
  for (const Rank& rank : ranks_) {
    if (rank.out.lost != 0)
      throw_errno(rank.out.lost, "[launch] the ranks' output could not be written");
  }
  return 0;
}

}  // namespace

int launch(const LaunchOptions& options) {
  require(options.ranks >= 1, "[launch] expected at least 1 rank, got ", options.ranks);
  require(options.stop_seconds >= 0, "[launch] expected stop_seconds of at least 0, got ",
          options.stop_seconds);
  try {
    return Launcher(options).run();
  } catch (const NoProgram& error) {
    throw UserError(error.what());
  }
}

}  // namespace flashstep
