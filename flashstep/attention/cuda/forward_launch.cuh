// Launches the forward kernel of one dtype and padded head dim; forward_instance.cu.in instantiates
// it.
#pragma once

#include "flashstep/attention/cuda/forward_kernel.cuh"
#include "flashstep/attention/cuda/forward_launch.h"
#include "flashstep/attention/cuda/launch.cuh"

namespace flashstep::attention_cuda {

template <Element kElement, int kDim, typename Planned, Accuracy kAccuracy>
cudaError_t launch_tile(const ForwardArguments& arguments, const ForwardPlan& plan,
                        cudaStream_t stream) {
  return launch<forward_kernel<kElement, kDim, Planned, kAccuracy>>(
      dim3(plan.blocks), dim3(Planned::kTile.threads()), plan.shared_bytes, stream, arguments);
}

template <Element kElement, int kDim>
cudaError_t launch_forward(const ForwardArguments& arguments, const ForwardPlan& plan,
                           cudaStream_t stream) {
  using Narrow = PlannedTile<kElement, kDim, TileShape::kNarrow>;
  using Wide = PlannedTile<kElement, kDim, TileShape::kWide>;
  using Large = PlannedTile<kElement, kDim, TileShape::kLarge>;
  if constexpr (kElement == Element::kFloat32) {
    return arguments.pass.problem.tf32
               ? launch_tile<kElement, kDim, Wide, Accuracy::kTf32>(arguments, plan, stream)
               : launch_tile<kElement, kDim, Wide, Accuracy::kFull>(arguments, plan, stream);
  } else {
    switch (plan.shape) {
      case TileShape::kNarrow:
        return launch_tile<kElement, kDim, Narrow, Accuracy::kFull>(arguments, plan, stream);
      case TileShape::kWide:
        return launch_tile<kElement, kDim, Wide, Accuracy::kFull>(arguments, plan, stream);
      case TileShape::kLarge:
        return launch_tile<kElement, kDim, Large, Accuracy::kFull>(arguments, plan, stream);
    }
    return cudaErrorInvalidValue;
  }
}

}  // namespace flashstep::attention_cuda
