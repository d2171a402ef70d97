// From numbers that are known at run time to the constants that kernels are compiled for.
#pragma once

#include <cuda_runtime_api.h>
#include <iterator>

#include "flashstep/attention/cuda/padded_dim.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

// launch.operator()<kElement>() for this element.
template <typename Launch>
cudaError_t launch_for(attention_kernel::Element element, const Launch& launch) {
  using attention_kernel::Element;
  switch (element) {
    case Element::kFloat32:
      return launch.template operator()<Element::kFloat32>();
    case Element::kBfloat16:
      return launch.template operator()<Element::kBfloat16>();
    case Element::kFloat16:
      return launch.template operator()<Element::kFloat16>();
  }
  return cudaErrorInvalidValue;
}

// launch.operator()<kDim>() for this padded head dim.
template <int kIndex = 0, typename Launch>
cudaError_t launch_for_dim(int dim, const Launch& launch) {
  if constexpr (kIndex == std::size(kPaddedDims)) {
    return cudaErrorInvalidValue;
  } else {
    constexpr int kDim = kPaddedDims[kIndex];
    return dim == kDim ? launch.template operator()<kDim>()
                       : launch_for_dim<kIndex + 1>(dim, launch);
  }
}

}  // namespace flashstep::attention_cuda
