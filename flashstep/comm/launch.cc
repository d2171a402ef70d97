#include "flashstep/comm/launch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <poll.h>
#include <set>
#include <string_view>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "flashstep/comm/child.h"
#include "flashstep/comm/output_queue.h"
#include "flashstep/comm/rank_stream.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Clock = OutputQueue::Clock;

constexpr auto kSameSignal = std::chrono::milliseconds(500);  // sooner it is not a second one
constexpr double kLastWordsSeconds = 2;  // of ranks that are asked a second time, and of others
constexpr auto kLookAgain = std::chrono::milliseconds(50);  // for what tells nobody of its end

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2};

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Those that ask ranks to save and end.
bool asks_for_an_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGXCPU;
}

// A blocked signal comes through signalfd even where it is ignored, as nohup asks for.
bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Whether what is written to both comes to the same place.
bool is_same_file(int a, int b) {
  struct stat of_a = {}, of_b = {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

struct Rank {
  Child child;
  RankStream out, err;
  bool ended = false;
  int status = 0;  // as waitpid() has it
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
  explicit Launcher(const LaunchOptions& options)
      : options_(options), out_(options.out), ranks_(options.ranks) {
    if (!is_same_file(options.out, options.err)) own_err_.emplace(options.err);
  }
  ~Launcher();
  int run();

 private:
  void start();
  void signal_all(int signal);
  void stop_others();
  void wait_for_news();
  int milliseconds_to_wait();
  void keep_deadlines();
  std::optional<Clock::time_point> given_up_at(const OutputQueue& queue) const;
  void take_signals();
  bool is_second(int signal);
  void kill_after(double seconds);
  void see_who_ended();
  void judge(int rank);
  std::string last_words(const Rank& rank) const;
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }
  bool is_over();
  OutputQueue& err() { return own_err_ ? *own_err_ : out_; }
  std::vector<OutputQueue*> queues() {
    return own_err_ ? std::vector{&out_, &*own_err_} : std::vector{&out_};
  }

  const LaunchOptions& options_;
  SignalQueue signals_;
  OutputQueue out_;
  std::optional<OutputQueue> own_err_;  // none where it is the same file: lines stay whole
  const FreePort port_;
  std::vector<Rank> ranks_;
  int forwarded_ = 0;           // the last that came and asks for an end
  int code_ = 0;                // of the first rank that failed
  Clock::time_point asked_at_;  // when the first of those came
  bool interrupted_ = false;    // a rank ended because of forwarded_, or output was given up
  bool cut_short_ = false;      // and was killed by it: it was not ready to save anything
  std::map<int, Clock::time_point> first_came_;  // of SIGINT and SIGTERM
  bool stopping_ = false, killed_ = false;
  std::optional<Clock::time_point> kill_at_;
};

Launcher::~Launcher() {
  for (Rank& rank : ranks_) {
    if (rank.child.pid > 0) {
      if (!rank.ended) kill(-rank.child.pid, SIGKILL);
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
    rank.out = {rank.child.out, &out_, label};
    rank.err = {rank.child.err, &err(), label};
  }
}

// With their own children, those of ranks that have ended as well: their numbers are no other's, as
// see_who_ended() leaves zombies.
void Launcher::signal_all(int signal) {
  for (const Rank& rank : ranks_) kill(-rank.child.pid, signal);
}

void Launcher::stop_others() {
  if (stopping_) return;
  stopping_ = true;
  kill_after(options_.stop_seconds);
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped rank takes no SIGTERM
}

void Launcher::kill_after(double seconds) {
  const auto at = Clock::now() + from_seconds(seconds);
  kill_at_ = std::min(kill_at_.value_or(at), at);
}

// Of a reader that takes nothing, after a signal to stop: ranks may be caught in what they print,
// and nobody else is waited for.
std::optional<Clock::time_point> Launcher::given_up_at(const OutputQueue& queue) const {
  const auto since = queue.waits_since();
  if (!since || forwarded_ == 0 || !(queue.is_full() || all_ended())) return std::nullopt;
  return std::max(*since, asked_at_) + from_seconds(kLastWordsSeconds);
}

int Launcher::milliseconds_to_wait() {
  std::optional<Clock::time_point> next;
  const auto until = [&](Clock::time_point at) { next = std::min(next.value_or(at), at); };
  if (kill_at_ && !killed_) until(*kill_at_);
  if (kill_at_ && !killed_ && all_ended()) until(Clock::now() + kLookAgain);
  for (const OutputQueue* queue : queues()) {
    if (const auto at = given_up_at(*queue)) until(*at);
  }
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

void Launcher::keep_deadlines() {
  for (OutputQueue* queue : queues()) {
    const auto at = given_up_at(*queue);
    if (!at || Clock::now() < *at) continue;
    interrupted_ = true;
    queue->drop();
  }
  if (kill_at_ && !killed_ && Clock::now() >= *kill_at_) {
    killed_ = true;
    if (!stopping_) interrupted_ = cut_short_ = true;
    signal_all(SIGKILL);
  }
}

void Launcher::wait_for_news() {
  std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
  for (const OutputQueue* queue : queues()) sources.push_back({queue->news(), POLLIN, 0});
  std::vector<std::pair<size_t, RankStream*>> streams;  // those with room for what they print
  for (Rank& rank : ranks_) {
    for (RankStream* stream : {&rank.out, &rank.err}) {
      if (stream->from < 0 || stream->to->is_full()) continue;
      streams.emplace_back(sources.size(), stream);
      sources.push_back({stream->from, POLLIN, 0});
    }
  }
  if (poll(sources.data(), sources.size(), milliseconds_to_wait()) > 0) {
    for (OutputQueue* queue : queues()) queue->take_news();
    for (const auto& [index, stream] : streams) {
      if (sources[index].revents != 0) stream->pass_on(SIZE_MAX);
    }
  }
  keep_deadlines();
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
    if (signal == SIGCHLD) continue;  // see_who_ended() looks at everyone
    if (asks_for_an_end(signal)) {
      if (forwarded_ == 0) asked_at_ = Clock::now();
      forwarded_ = signal;
    }
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
  err().add(str("flashstep: [launch] rank ", index, " of ", options_.ranks, " (process ",
                rank.child.pid, ") ", describe_end(rank.status), last_words(rank),
                alone ? "" : "; stopping the other ranks", "\n"));
}

// Whoever has stays a zombie while this lives: the number of its process group is no other's.
void Launcher::see_who_ended() {
  for (int i = 0; i < options_.ranks; ++i) {
    Rank& rank = ranks_[i];
    siginfo_t end = {};
    if (rank.ended ||
        waitid(P_PID, static_cast<id_t>(rank.child.pid), &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        end.si_pid == 0) {
      continue;
    }
    rank.ended = true;
    rank.status = end.si_code == CLD_EXITED ? W_EXITCODE(end.si_status, 0) : end.si_status;
    rank.out.finish();
    rank.err.finish();
    judge(i);
  }
}

// Nobody is waited for whom ranks that went well, or were asked to save, have left behind. When a
// job is stopped, nobody stays: ranks' children have until kill_at_ as well, but not long.
bool Launcher::is_over() {
  if (!all_ended()) return false;
  if (kill_at_ && !killed_) {
    std::set<pid_t> groups;
    for (const Rank& rank : ranks_) groups.insert(rank.child.pid);
    if (is_anyone_in(groups)) {
      kill_after(std::min(options_.stop_seconds, kLastWordsSeconds));
      return false;
    }
  }
  for (const OutputQueue* queue : queues()) {
    if (queue->waits_since()) return false;
  }
  return true;
}

int Launcher::run() {
  start();
  while (!is_over()) {
    wait_for_news();
    take_signals();
    see_who_ended();
  }
  if (code_ != 0) return code_;
  if (interrupted_) return 128 + forwarded_;
  if (out_.error() != 0)
    throw_errno(out_.error(), "[launch] the ranks' output could not be written");
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
