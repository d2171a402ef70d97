#include "flashstep/error.h"
#include "flashstep/measure/gpu_memory.h"

namespace flashstep::measure {

void listen_to_gpu_memory(GpuMemoryListener*) {}
void record_gpu_memory_history(bool) {}

std::string gpu_memory_snapshot() {
  throw MachineError("[gpu] expected a build with CUDA for a snapshot of GPU memory");
}

}  // namespace flashstep::measure
