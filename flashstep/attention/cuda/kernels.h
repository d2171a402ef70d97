// Attention on NVIDIA GPUs from sm_80: what the tensor side calls. No torch headers here or below.
#pragma once

#include <cuda_runtime_api.h>

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/forward_plan.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Backward;
using attention_kernel::Forward;
using attention_kernel::Problem;

// Whether these kernels take such inputs as they lie: every pointer on 16 bytes, and every stride
// (of a dimension longer than one) a multiple of 16 bytes. Others are copied by the caller.
constexpr int kAlignmentBytes = 16;

// Enqueue a pass as its problem's plan (plan_forward, plan_backward) cuts it, with the plan's
// workspace_bytes of device memory on the pass's stream. Capturable in a CUDA graph: no allocation,
// no synchronisation. The returned error is that of the launches; the caller turns it into an
// exception.
cudaError_t forward(const Forward& pass, const ForwardPlan& plan, void* workspace,
                    cudaStream_t stream);
cudaError_t backward(const Backward& pass, const BackwardPlan& plan, void* workspace,
                     cudaStream_t stream);

}  // namespace flashstep::attention_cuda
