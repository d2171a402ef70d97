#include "flashstep/comm/outside_collectives.h"

#include <utility>

namespace flashstep::comm {

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
}

}  // namespace flashstep::comm
