// Attention on NVIDIA GPUs from sm_80: what the tensor side calls. No torch headers here or below.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "flashstep/attention/cuda/device.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Backward;
using attention_kernel::Forward;
using attention_kernel::Problem;

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
