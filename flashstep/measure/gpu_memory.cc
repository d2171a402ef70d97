#include "flashstep/measure/gpu_memory.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/memory_snapshot.h>
#include <torch/cuda.h>

namespace flashstep::measure {
namespace {

using c10::CachingDeviceAllocator::TraceEntry;

std::mutex listener_mutex;
GpuMemoryListener* current_listener = nullptr;

void tell(const TraceEntry& entry) {
  const std::lock_guard lock(listener_mutex);
  if (current_listener == nullptr) return;
  if (entry.action_ == TraceEntry::ALLOC) {
    current_listener->gpu_allocated(entry.device_, entry.addr_, static_cast<int64_t>(entry.size_));
  } else if (entry.action_ == TraceEntry::FREE_COMPLETED) {
    current_listener->gpu_freed(entry.device_, entry.addr_);
  }
}

}  // namespace

void listen_to_gpu_memory(GpuMemoryListener* listener) {
  // The allocator has no way to take a tracker back: one stays, and passes on.
  static const bool attached = [] {
    // Before, there is no allocator of any GPU that could be listened to.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(tell);
    return true;
  }();
  static_cast<void>(attached);
  const std::lock_guard lock(listener_mutex);
  current_listener = listener;
}

void record_gpu_memory_history(bool enabled) {
  // The default asks addr2line, which takes minutes for LibTorch's libraries.
  setenv("TORCH_SYMBOLIZE_MODE", "dladdr", /*replace=*/0);
  const std::optional<std::string> all = "all";
  torch::cuda::_record_memory_history(enabled ? all : std::nullopt, all, /*stacks=*/"all");
}

std::string gpu_memory_snapshot() { return torch::cuda::_memory_snapshot_pickled(); }

}  // namespace flashstep::measure
