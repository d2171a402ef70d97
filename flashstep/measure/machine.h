// What this machine is. What it can do at most is in limits.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/measure/gpu.h"

namespace flashstep::measure {

struct Machine {
  std::string processor;      // "AMD EPYC 9654 96-Core Processor"
  std::string instructions;   // what matters for matrix products: "avx2 fma avx512f avx512_bf16"
  int cores = 0;              // that this process may run on
  int threads = 0;            // that LibTorch computes with
  uint64_t memory_bytes = 0;  // of the machine, or of its container if that is less
  std::string system;         // "Linux 6.1.0"
  std::string libtorch_version;
  std::string cuda_version, driver_version;  // empty without GPU
  std::vector<Gpu> gpus;
  bool unused_gpu = false;  // a GPU is there, and this program was built without CUDA
};

Machine describe_machine();

// "AMD EPYC, 2 cores, 24 GiB" or "8 x NVIDIA H200 with 140 GiB; Intel Xeon ..., 128 cores, ...":
// for footnotes.
std::string one_line(const Machine& machine);

// versions.cc, which knows LibTorch: "2.11.0", and the threads of its CPU kernels.
std::string libtorch_version();
int libtorch_threads();

namespace internal {
// The value of the first line "name : value" in the text of /proc/cpuinfo; empty if there is none.
std::string cpuinfo_field(const std::string& cpuinfo, const std::string& name);
}  // namespace internal

}  // namespace flashstep::measure
