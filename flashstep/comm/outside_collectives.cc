#include "flashstep/comm/outside_collectives.h"

#include <chrono>
#include <utility>

namespace flashstep {
namespace {

constexpr std::chrono::milliseconds kAgain(10);

}  // namespace

std::shared_ptr<void> OutsideCollectives::on_loss(std::function<void()> interrupt) {
  const std::lock_guard lock(mutex_);
  if (lost_) interrupt();
  const int number = next_++;
  interrupts_[number] = std::move(interrupt);
  const auto forget = [self = shared_from_this(), number](void* /*none*/) {
    const std::lock_guard own_lock(self->mutex_);
    self->interrupts_.erase(number);
  };
  return {nullptr, forget};
}

void OutsideCollectives::interrupt() {
  const std::lock_guard lock(mutex_);
  lost_ = true;
  for (const auto& [number, interrupt] : interrupts_) interrupt();
  if (!stopped_ && !repeater_.joinable()) repeater_ = std::thread([this] { repeat(); });
}

void OutsideCollectives::repeat() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    news_.wait_for(lock, kAgain);
    if (stopped_) return;
    for (const auto& [number, interrupt] : interrupts_) interrupt();
  }
}

void OutsideCollectives::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  news_.notify_all();
  if (repeater_.joinable()) repeater_.join();
}

}  // namespace flashstep
