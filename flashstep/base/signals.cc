#include "flashstep/base/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <unistd.h>
#include <utility>

#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
constexpr std::array kFailedWrite = {SIGPIPE, SIGXFSZ};

volatile std::sig_atomic_t g_received = 0;
std::atomic<int> g_guards = 0;
std::atomic<const char*> g_announcement = nullptr;
// What was there before the outermost guard.
std::array<struct sigaction, kEnding.size()> g_ending_before;
std::array<struct sigaction, kFailedWrite.size()> g_failed_write_before;

void remember(int signal) {
  g_received = signal;
  if (const char* text = g_announcement.exchange(nullptr)) {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    errno = error;
  }
  if (signal == SIGINT || signal == SIGTERM) std::signal(signal, SIG_DFL);  // a second one is meant
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

std::string signal_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "Ctrl-C";
    case SIGHUP:
      return "SIGHUP (the terminal was closed)";
    case SIGXCPU:
      return "SIGXCPU (the limit of CPU time)";
    default:
      const char* name = ::sigabbrev_np(signal);
      return name != nullptr ? str("SIG", name) : str("signal ", signal);
  }
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
