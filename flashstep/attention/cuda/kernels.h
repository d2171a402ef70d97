// Attention on NVIDIA GPUs from sm_80: what the tensor side calls. No torch headers here or below.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Backward;
using attention_kernel::Forward;
using attention_kernel::Problem;

// What a plan may use of a GPU; its numbers come from cudaDeviceProp, or from a test.
struct Device {
  int sm_count;
  int shared_bytes_per_block;  // with opt-in: 99 KiB (sm_86, sm_89), 163 KiB (sm_80), 227 KiB
                               // (sm_90)
  int shared_bytes_per_sm;
};

// Whether these kernels take such inputs as they lie: every pointer on 16 bytes, and every stride
// (of a dimension longer than one) a multiple of 16 bytes. Others are copied by the caller.
constexpr int kAlignmentBytes = 16;

// Device memory that a pass needs besides its arguments, on the pass's stream; 0 when none.
size_t forward_workspace_bytes(const Problem& problem, const Device& device);
size_t backward_workspace_bytes(const Problem& problem, const Device& device);

// Enqueue a pass. Capturable in a CUDA graph: no allocation, no synchronisation. The returned error
// is that of the launches; the caller turns it into an exception.
cudaError_t forward(const Forward& pass, const Device& device, void* workspace,
                    cudaStream_t stream);
cudaError_t backward(const Backward& pass, const Device& device, void* workspace,
                     cudaStream_t stream);

}  // namespace flashstep::attention_cuda
