#define USE_C10D_NCCL  // else LibTorch's header is empty
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "flashstep/comm/backends.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// Before the first communicator; what the user has set is left alone.
void set_nccl_error_handling_defaults() {
  const std::pair<const char*, const char*> settings[] = {
      // 2, clean up only: on an error communicators are aborted, so that kernels that wait end, and
      // works carry the error; 1 and 3 end the process with SIGABRT.
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"},
      {"TORCH_NCCL_ENABLE_MONITORING", "0"},    // its thread ends the process with SIGABRT
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},      // pages of traces
      {"TORCH_NCCL_PROPAGATE_ERROR", "0"},      // the watch does that, with a name
      {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},  // else thrown in a thread of its own: SIGABRT
      {"TORCH_NCCL_TRACE_BUFFER_SIZE", "0"},    // a record of every call, which nobody reads
  };
  for (const auto& [name, value] : settings) setenv(name, value, /*overwrite=*/0);
}

// As nvidia-smi writes it.
std::string name_of_gpu(int index) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  std::string name = "GPU-";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned char>(properties.uuid.bytes[i]));
    name += digits;
  }
  return name;
}

}  // namespace

bool has_nccl() { return true; }

std::string own_gpu(const Environment& environment, int device_index) {
  const int devices = c10::cuda::device_count();
  if (device_index < 0) device_index = gpu_of_rank(devices, environment);
  require(device_index < devices, "[comm] expected a GPU below ", devices, ", got ", device_index);
  return name_of_gpu(device_index);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int world_size, std::chrono::milliseconds timeout) {
  set_nccl_error_handling_defaults();
  // High priority: a collective that has begun holds multiprocessors until both sides are there, so
  // its blocks go before those of the products beside it.
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = 2 * timeout;  // the watch is first, and knows whom to name
  // Not eagerConnectSingleDevice(): the first collective makes the communicator, under the watch.
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
}

}  // namespace flashstep
