#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::measure {

bool built_with_cuda() { return false; }
std::vector<Gpu> list_gpus() { return {}; }
std::string gpu_driver_version() { return ""; }
std::string cuda_runtime_version() { return ""; }
void start_gpu_capture() {}
void stop_gpu_capture() {}
void synchronize_gpu(int) {}
uint64_t gpu_allocated_bytes(int) { return 0; }
uint64_t gpu_peak_allocated_bytes(int) { return 0; }
void reset_gpu_peak_allocated(int) {}
void release_cached_gpu_memory() {}

GpuBandwidth measure_gpu_bandwidth(int index) {
  throw MachineError(str("[gpu] GPU ", index, " cannot be measured: this build has no CUDA"));
}

std::vector<double> measure_gpu_link(int, int) { return {}; }

}  // namespace flashstep::measure
