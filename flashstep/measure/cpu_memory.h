// Hears of every piece of memory that LibTorch's CPU allocator gives out and takes back, on
// whatever thread. (LibTorch's own reports come by thread: of a tensor that a thread of Gloo's is
// the last to let go, none says that it is freed.) In a header alone: tests of rooms that are built
// without this one count with it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include <c10/core/CPUAllocator.h>

#include "flashstep/error.h"

namespace flashstep::measure {

class CpuMemoryListener {
 public:
  virtual ~CpuMemoryListener() = default;
  // Called under a lock; must not make or free tensors.
  virtual void cpu_allocated(const void* address, int64_t bytes) = 0;
  virtual void cpu_freed(const void* address) = 0;  // also of memory that was there before
};

namespace internal {

inline std::mutex listener_mutex;  // held while a listener is called
inline CpuMemoryListener* current_listener = nullptr;
// Set once, before the one in front is used. Atomic, because a thread of Gloo's learns of that one
// from LibTorch, which hands it over without a lock.
inline std::atomic<c10::Allocator*> plain_allocator = nullptr;

inline void free_heard(void* address) {
  {
    // Told first: afterwards another thread may be given the same address.
    const std::lock_guard lock(listener_mutex);
    if (current_listener != nullptr) current_listener->cpu_freed(address);
  }
  plain_allocator.load()->raw_deleter()(address);
}

class HeardAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const address = plain_allocator.load()->raw_allocate(bytes);
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
    plain_allocator.load()->copy_data(destination, source, bytes);
  }
};

// Tensors keep a pointer to their allocator: it lives as long as the process.
inline c10::Allocator* heard_allocator() {
  static auto* const allocator = new HeardAllocator;
  return allocator;
}

}  // namespace internal

// One at a time, UserError at a second; nullptr ends it, and the one before is not called any more.
inline void listen_to_cpu_memory(CpuMemoryListener* listener) {
  using namespace internal;
  const std::lock_guard lock(listener_mutex);
  require(listener == nullptr || current_listener == nullptr,
          "[memory] expected one listener to the CPU's memory at a time, got a second");
  if (plain_allocator == nullptr) plain_allocator = c10::GetCPUAllocator();
  require(plain_allocator.load()->raw_deleter() != nullptr,
          "[memory] expected a CPU allocator whose memory can be freed by address");
  current_listener = listener;
  c10::SetCPUAllocator(listener == nullptr ? plain_allocator.load() : heard_allocator());
}

// How many bytes of tensors the process holds beyond those that it held when this was made.
class AllocatedBytes : CpuMemoryListener {
 public:
  AllocatedBytes() { listen_to_cpu_memory(this); }
  ~AllocatedBytes() override { listen_to_cpu_memory(nullptr); }
  AllocatedBytes(const AllocatedBytes&) = delete;
  AllocatedBytes& operator=(const AllocatedBytes&) = delete;

  int64_t now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  int64_t peak() const {  // since the making, or since reset_peak()
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = now_;
  }

 private:
  void cpu_allocated(const void* address, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    blocks_[address] = bytes;
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void cpu_freed(const void* address) override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return;
    now_ -= found->second;
    blocks_.erase(found);
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, int64_t> blocks_;
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace flashstep::measure
