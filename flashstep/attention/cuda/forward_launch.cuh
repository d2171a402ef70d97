// Launches the forward kernel of one dtype and padded head dim; forward_instance.cu.in instantiates
// it.
#pragma once

#include "flashstep/attention/cuda/forward_hopper.cuh"
#include "flashstep/attention/cuda/forward_kernel.cuh"
#include "flashstep/attention/cuda/forward_launch.h"
#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/tensor_map.h"

namespace flashstep::attention_cuda {

// launch.operator()<kWindow>() for this mask.
template <typename Launch>
cudaError_t launch_for_mask(const ForwardArguments& arguments, const Launch& launch) {
  return arguments.has_window ? launch.template operator()<true>()
                              : launch.template operator()<false>();
}

template <Element kElement, int kDim, typename Planned, Accuracy kAccuracy>
cudaError_t launch_tile(const ForwardArguments& arguments, const ForwardPlan& plan,
                        cudaStream_t stream) {
  return launch_for_mask(arguments, [&]<bool kWindow>() {
    return launch<forward_kernel<kElement, kDim, Planned, kAccuracy, kWindow>>(
        dim3(plan.blocks), dim3(Planned::kTile.threads()), plan.shared_bytes, stream, arguments);
  });
}

template <Element kElement, int kDim, typename Planned>
cudaError_t launch_hopper(const ForwardArguments& arguments, const ForwardPlan& plan,
                          cudaStream_t stream) {
  const auto& [problem, q, k, v, out, logsumexp] = arguments.pass;
  ForwardMaps maps;
  cudaError_t error = map_rows(maps.q, problem, q, problem.heads, problem.n, Planned::kTile.rows());
  if (error == cudaSuccess)
    error = map_rows(maps.k, problem, k, problem.kv_heads, problem.m, Planned::kTile.keys);
  if (error == cudaSuccess)
    error = map_rows(maps.v, problem, v, problem.kv_heads, problem.m, Planned::kTile.keys);
  if (error != cudaSuccess) return error;
  return launch_for_mask(arguments, [&]<bool kWindow>() {
    return launch<forward_hopper_kernel<kElement, kDim, Planned, kWindow>>(
        dim3(plan.resident_blocks), dim3(Planned::kTile.threads()), plan.shared_bytes, stream,
        arguments, maps);
  });
}

template <Element kElement, int kDim>
cudaError_t launch_forward(const ForwardArguments& arguments, const ForwardPlan& plan,
                           cudaStream_t stream) {
  using Narrow = PlannedTile<kElement, kDim, TileShape::kNarrow>;
  using Wide = PlannedTile<kElement, kDim, TileShape::kWide>;
  using Large = PlannedTile<kElement, kDim, TileShape::kLarge>;
  using Warpgroups = PlannedTile<kElement, kDim, TileShape::kWarpgroups>;
  using NarrowWarpgroups = PlannedTile<kElement, kDim, TileShape::kNarrowWarpgroups>;
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
      case TileShape::kWarpgroups:
        if constexpr (Warpgroups::kTile.warpgroups)
          return launch_hopper<kElement, kDim, Warpgroups>(arguments, plan, stream);
        break;
      case TileShape::kNarrowWarpgroups:
        if constexpr (NarrowWarpgroups::kTile.warpgroups)
          return launch_hopper<kElement, kDim, NarrowWarpgroups>(arguments, plan, stream);
        break;
    }
    return cudaErrorInvalidValue;
  }
}

}  // namespace flashstep::attention_cuda
