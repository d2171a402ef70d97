#include "flashstep/base/signals.h"

#include <atomic>
#include <csignal>
#include <utility>

#include "flashstep/base/error.h"

namespace flashstep {
namespace {

volatile std::sig_atomic_t g_received = 0;
std::atomic<int> g_guards = 0;

void remember(int signal) {
  g_received = signal;
  std::signal(signal, SIG_DFL);  // a second one is meant
}

}  // namespace

SignalGuard::SignalGuard() {
  if (g_guards++ > 0) return;
  g_received = 0;
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

SignalGuard::~SignalGuard() {
  if (--g_guards > 0) return;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
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
