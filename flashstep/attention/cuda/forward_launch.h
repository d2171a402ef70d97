// The launches behind forward(): one function per dtype and padded head dim, each in a file of its
// own.
#pragma once

#include "flashstep/attention/cuda/forward_plan.h"
#include "flashstep/attention/cuda/forward_work.cuh"

namespace flashstep::attention_cuda {

template <Element kElement, int kDim>
cudaError_t launch_forward(const ForwardArguments& arguments, const ForwardPlan& plan,
                           cudaStream_t stream);

// out and logsumexp from the partial results of all splits, summed in the order of the splits.
cudaError_t launch_forward_merge(const ForwardArguments& arguments, cudaStream_t stream);

}  // namespace flashstep::attention_cuda
