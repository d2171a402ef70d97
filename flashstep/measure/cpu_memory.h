// Hears of every piece of memory that LibTorch's CPU allocator gives out and takes back, on
// whatever thread. (LibTorch's own reports come by thread: of a tensor that a thread of Gloo's is
// the last to let go, none says that it is freed.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace flashstep::measure {

class CpuMemoryListener {
 public:
  virtual ~CpuMemoryListener() = default;
  // Called under a lock; must not make or free tensors.
  virtual void cpu_allocated(const void* address, int64_t bytes) = 0;
  virtual void cpu_freed(const void* address) = 0;  // also of memory that was there before
};

// One at a time, UserError at a second; nullptr ends it, and the one before is not called any more.
void listen_to_cpu_memory(CpuMemoryListener* listener);

// How many bytes of tensors the process holds beyond those that it held when this was made.
class AllocatedBytes : CpuMemoryListener {
 public:
  AllocatedBytes() { listen_to_cpu_memory(this); }
  ~AllocatedBytes() override { listen_to_cpu_memory(nullptr); }
  AllocatedBytes(const AllocatedBytes&) = delete;
  AllocatedBytes& operator=(const AllocatedBytes&) = delete;

  int64_t now() const;
  int64_t peak() const;  // since the making, or since reset_peak()
  void reset_peak();

 private:
  void cpu_allocated(const void* address, int64_t bytes) override;
  void cpu_freed(const void* address) override;

  mutable std::mutex mutex_;
  std::unordered_map<const void*, int64_t> blocks_;
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace flashstep::measure
