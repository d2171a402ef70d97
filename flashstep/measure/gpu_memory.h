// LibTorch's allocator on GPUs, watched: gpu_memory.cc in a CUDA build; no_gpu_memory.cc, in which
// nothing is ever heard, in the others.
#pragma once

#include <cstdint>
#include <string>

namespace flashstep::measure {

// What the allocator tells, on the thread that asked it for memory, while it holds its own lock: a
// listener must not ask it for memory. A free is told when the memory can be used again.
class GpuMemoryListener {
 public:
  virtual ~GpuMemoryListener() = default;
  virtual void gpu_allocated(int device, uint64_t address, int64_t bytes) = 0;
  virtual void gpu_freed(int device, uint64_t address) = 0;
};

// From now on `listener` hears of all GPUs (nullptr: nobody does). Returns when the one before
// hears no more.
void listen_to_gpu_memory(GpuMemoryListener* listener);

// Makes LibTorch keep the history of its allocations, with C++ stacks, and forget it again.
void record_gpu_memory_history(bool enabled);
// LibTorch's own snapshot of all that was recorded: a pickle for pytorch.org/memory_viz.
std::string gpu_memory_snapshot();

}  // namespace flashstep::measure
