#include "flashstep/measure/cpu_memory.h"

#include <algorithm>

#include <c10/core/CPUAllocator.h>

#include "flashstep/base/error.h"

namespace flashstep::measure {
namespace {

std::mutex listener_mutex;  // held while a listener is called
CpuMemoryListener* current_listener = nullptr;
c10::Allocator* plain_allocator = nullptr;  // set once, before the one in front is used

void free_heard(void* address) {
  {
    // Told first: afterwards another thread may be given the same address.
    const std::lock_guard lock(listener_mutex);
    if (current_listener != nullptr) current_listener->cpu_freed(address);
  }
  plain_allocator->raw_deleter()(address);
}

class HeardAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const address = plain_allocator->raw_allocate(bytes);
    if (address != nullptr) {
      const std::lock_guard lock(listener_mutex);
      if (current_listener != nullptr) {
        current_listener->cpu_allocated(address, static_cast<int64_t>(bytes));
      }
    }
    return {address, address, &free_heard, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_heard; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    plain_allocator->copy_data(destination, source, bytes);
  }
};

// Tensors keep a pointer to their allocator: it lives as long as the process.
c10::Allocator* heard_allocator() {
  static auto* const allocator = new HeardAllocator;
  return allocator;
}

}  // namespace

void listen_to_cpu_memory(CpuMemoryListener* listener) {
  const std::lock_guard lock(listener_mutex);
  require(listener == nullptr || current_listener == nullptr,
          "[memory] expected one listener to the CPU's memory at a time, got a second");
  if (plain_allocator == nullptr) plain_allocator = c10::GetCPUAllocator();
  require(plain_allocator->raw_deleter() != nullptr,
          "[memory] expected a CPU allocator whose memory can be freed by address");
  current_listener = listener;
  c10::SetCPUAllocator(listener == nullptr ? plain_allocator : heard_allocator());
}

int64_t AllocatedBytes::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

int64_t AllocatedBytes::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void AllocatedBytes::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = now_;
}

void AllocatedBytes::cpu_allocated(const void* address, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  blocks_[address] = bytes;
  now_ += bytes;
  peak_ = std::max(peak_, now_);
}

void AllocatedBytes::cpu_freed(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  now_ -= found->second;
  blocks_.erase(found);
}

}  // namespace flashstep::measure
