#include "flashstep/base/signals.h"

#include <csignal>

namespace flashstep {
namespace {

volatile std::sig_atomic_t g_received = 0;

void remember(int signal) {
  g_received = signal;
  std::signal(signal, SIG_DFL);  // a second one is meant
}

}  // namespace

SignalGuard::SignalGuard() {
  g_received = 0;
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

SignalGuard::~SignalGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int SignalGuard::received() { return g_received; }

}  // namespace flashstep
