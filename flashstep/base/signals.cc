#include "flashstep/base/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <utility>

#include "flashstep/base/unfinished.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
constexpr std::array kFailedWrite = {SIGPIPE, SIGXFSZ};

// timeout(1) sends its signal to the process and then to the process's group, and a key that is
// held down repeats itself: the same signal within this time is one request.
constexpr int64_t kOneRequestMs = 500;

volatile std::sig_atomic_t g_received = 0;
std::atomic<int> g_guards = 0;
std::atomic<const char*> g_announcement = nullptr;
// When the first SIGINT and the first SIGTERM of the last guard came; 0: not yet.
std::array<std::atomic<int64_t>, 2> g_asked_ms;
static_assert(std::atomic<int64_t>::is_always_lock_free);  // a handler uses it
// What was there before the outermost guard.
std::array<struct sigaction, kEnding.size()> g_ending_before;
std::array<struct sigaction, kFailedWrite.size()> g_failed_write_before;
// Who says that it ends; a child before its exec() is another process.
std::atomic<const char*> g_program = nullptr;
std::atomic<pid_t> g_process = 0;

// Null: there is none for people.
const char* name_for_people(int signal) {
  switch (signal) {
    case SIGINT:
      return "Ctrl-C";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP (the terminal was closed)";
    case SIGXCPU:
      return "SIGXCPU (the limit of CPU time)";
    case SIGBUS:
      return "SIGBUS (a file that it reads was cut short, or /dev/shm, a disk or memory is full or "
             "failed)";
    default:
      return nullptr;
  }
}

void write_to_stderr(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

[[noreturn]] void end_by(int signal) {
  if (const char* program = g_program; program != nullptr && g_process == ::getpid()) {
    const bool any = Unfinished::remove_all();
    if (::isatty(STDERR_FILENO) == 1) write_to_stderr("\n");  // below a progress bar
    for (const char* part : {program, ": stopped by ", name_for_people(signal),
                             any ? "; what it was writing is removed\n" : "\n"}) {
      write_to_stderr(part);
    }
  }
  std::signal(signal, SIG_DFL);
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &own, nullptr);  // a handler's own signal waits for its end
  ::raise(signal);
  ::_exit(128 + signal);  // the first process of a container does not die of it
}

std::atomic<int64_t>* asked_ms(int signal) {
  if (signal == SIGINT) return &g_asked_ms[0];
  return signal == SIGTERM ? &g_asked_ms[1] : nullptr;
}

int64_t now_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void remember(int signal) {
  const int error = errno;
  if (std::atomic<int64_t>* asked = asked_ms(signal)) {
    int64_t first = 0;
    const bool is_first = asked->compare_exchange_strong(first, now_ms());
    if (!is_first && now_ms() - first >= kOneRequestMs) end_by(signal);
  }
  g_received = signal;
  if (const char* text = g_announcement.exchange(nullptr)) write_to_stderr(text);
  errno = error;
}

// A request that a guard has received may end a moment after the guard.
void end_unless_received(int signal) {
  const std::atomic<int64_t>* asked = asked_ms(signal);
  if (asked != nullptr && *asked != 0 && now_ms() - *asked < kOneRequestMs) return;
  end_by(signal);
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

// A terminal's Ctrl-C and a scheduler's SIGTERM are heard whatever a shell has set up for a process
// in the background; who ignores the other two has asked for that.
bool is_left_alone(int signal, const struct sigaction& before) {
  return signal != SIGINT && signal != SIGTERM && before.sa_handler == SIG_IGN;
}

}  // namespace

SignalGuard::SignalGuard() {
  if (g_guards++ > 0) return;
  g_received = 0;
  for (std::atomic<int64_t>& asked : g_asked_ms) asked = 0;
  for (size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], nullptr, &g_ending_before[i]);
    if (!is_left_alone(kEnding[i], g_ending_before[i])) set_handler(kEnding[i], remember);
  }
  for (size_t i = 0; i < kFailedWrite.size(); ++i) {
    ::sigaction(kFailedWrite[i], nullptr, &g_failed_write_before[i]);
    if (g_failed_write_before[i].sa_handler == SIG_DFL) set_handler(kFailedWrite[i], SIG_IGN);
  }
}

SignalGuard::~SignalGuard() {
  if (--g_guards > 0) return;
  g_announcement = nullptr;
  for (size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], &g_ending_before[i], nullptr);
  }
  for (size_t i = 0; i < kFailedWrite.size(); ++i) {
    ::sigaction(kFailedWrite[i], &g_failed_write_before[i], nullptr);
  }
}

void SignalGuard::announce(const char* text) {
  if (g_guards > 0 && g_received == 0) g_announcement = text;
}

void end_with_a_sentence(const char* program) {
  g_process = ::getpid();
  g_program = program;
  for (const int signal : kEnding) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) set_handler(signal, end_unless_received);
  }
  struct sigaction before = {};
  ::sigaction(SIGBUS, nullptr, &before);  // mapped bytes that are gone; a sanitizer has its own say
  if (before.sa_handler == SIG_DFL) set_handler(SIGBUS, end_by);
}

std::string signal_name(int signal) {
  if (const char* name = name_for_people(signal)) return name;
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? str("SIG", name) : str("signal ", signal);
}

int SignalGuard::received() { return g_received; }

void check_interrupted(const std::string& sentence) {
  if (const int signal = SignalGuard::received(); signal != 0) throw Interrupted(signal, sentence);
}

ProgressFunction interruptible(ProgressFunction progress, std::string sentence) {
  return [progress = std::move(progress), sentence = std::move(sentence)](uint64_t done,
                                                                          uint64_t total) {
    if (progress) progress(done, total);
    check_interrupted(sentence);
  };
}

}  // namespace flashstep
