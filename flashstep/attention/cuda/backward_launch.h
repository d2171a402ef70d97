// The launches behind backward(): the row kernels, and the passes of one arithmetic and padded head
// dim each, in a file of its own.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"

namespace flashstep::attention_cuda {

// Row statistics, and zeros where the passes add sums.
cudaError_t launch_backward_prepare(const BackwardArguments& args, cudaStream_t stream);

template <Arithmetic kArithmetic, int kDim>
cudaError_t launch_backward_keys(const BackwardArguments& args, cudaStream_t stream);

template <Arithmetic kArithmetic, int kDim>
cudaError_t launch_backward_queries(const BackwardArguments& args, cudaStream_t stream);

// Results from the sums that the passes left.
cudaError_t launch_backward_finish(const BackwardArguments& args, cudaStream_t stream);

}  // namespace flashstep::attention_cuda
