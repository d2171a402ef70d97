// The NVIDIA GPUs of this machine and their memory. gpu.cc in a CUDA build; no_gpu.cc, to which
// there are none, in the others. Failing CUDA calls throw MachineError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashstep::measure {

struct Gpu {
  std::string name;  // "NVIDIA H200"
  uint64_t memory_bytes = 0;
  int capability_major = 0, capability_minor = 0;  // 9.0: Hopper
  int multiprocessors = 0;
  uint64_t l2_bytes = 0;
};

// True if this program was built with CUDA.
bool built_with_cuda();

// The GPUs that this process may use, in CUDA's order; empty without any or without a driver.
std::vector<Gpu> list_gpus();

std::string
gpu_driver_version();  // "580.95.05", or the CUDA version that the driver offers; "" without
std::string cuda_runtime_version();  // "13.0"; "" without

// What runs between the two is what NVIDIA's profilers record when they are told to wait for it
// (nsys --capture-range=cudaProfilerApi, ncu --profile-from-start off). Otherwise nothing happens.
void start_gpu_capture();
void stop_gpu_capture();

// Waits until the GPU has done all that it was given. Nothing to wait for: nothing happens.
void synchronize_gpu(int index = 0);

// LibTorch's caching allocator on one GPU: tensors now, and the most since the start or the reset.
uint64_t gpu_allocated_bytes(int index = 0);
uint64_t gpu_peak_allocated_bytes(int index = 0);
void reset_gpu_peak_allocated(int index = 0);
void release_cached_gpu_memory();

// Bytes per second of the GPU's memory: `copy` counts bytes read and written, `read` those read.
// The ninth decile of repeated runs over buffers far larger than the L2 cache.
struct GpuBandwidth {
  double copy = 0, read = 0;
};
GpuBandwidth measure_gpu_bandwidth(int index = 0);

// Bytes per second that each of two GPUs sends into the other's memory while both do, of repeated
// copies; empty where they cannot reach it without the host.
std::vector<double> measure_gpu_link(int first, int second);

}  // namespace flashstep::measure
