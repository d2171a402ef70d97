// forward(): from a pass to its plan, its arguments and its kernels.
#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>

#include "flashstep/attention/cuda/dispatch.h"
#include "flashstep/attention/cuda/forward_launch.h"
#include "flashstep/attention/cuda/forward_plan.h"
#include "flashstep/attention/cuda/forward_work.cuh"
#include "flashstep/attention/cuda/kernels.h"

namespace flashstep::attention_cuda {

using attention_kernel::kLog2E;

namespace {

ForwardArguments make_arguments(const Forward& pass, const ForwardPlan& plan, void* workspace) {
  const Problem& problem = pass.problem;
  ForwardArguments a{};
  a.pass = pass;
  const float scale = problem.scale;
  a.scale_log2 =
      scale == 0 ? 1.0f : static_cast<float>(std::min(std::abs(scale) * kLog2E, 1.0 * FLT_MAX));
  a.query_and = scale == 0 ? 0u : ~0u;
  a.query_xor = scale >= 0 ? 0u : problem.element == Element::kFloat32 ? 0x80000000u : 0x80008000u;
  a.n = static_cast<int>(problem.n);
  a.m = static_cast<int>(problem.m);
  const Problem bounded = attention_kernel::with_bounded_mask(problem);
  a.diagonal = static_cast<int>(bounded.diagonal);
  a.window = static_cast<int>(bounded.window);
  a.has_window = attention_kernel::has_window(bounded) || problem.documents != nullptr;
  const ForwardTile tile = forward_tile(problem.element, plan.dim, plan.shape);
  a.tile_rows = tile.rows();
  a.tile_keys = tile.keys;
  a.row_tiles = static_cast<int>(plan.row_tiles);
  a.splits = plan.splits;
  a.keys_per_split = static_cast<int>(plan.keys_per_split);
  a.section_heads = plan.section_heads;
  a.tiles_differ = !sees_evenly(bounded);
  a.pair_turns = plan.pair_turns;
  if (plan.splits > 1) {
    const int64_t rows = plan.splits * problem.batches * problem.heads * problem.n;
    a.partial_out = static_cast<float*>(workspace);
    a.partial_state = reinterpret_cast<float2*>(a.partial_out + rows * problem.head_dim);
  }
  return a;
}

}  // namespace

cudaError_t forward(const Forward& pass, const ForwardPlan& plan, void* workspace,
                    cudaStream_t stream) {
  const Problem& problem = pass.problem;
  if (std::max({problem.n, problem.m, problem.batches * problem.heads}) > INT_MAX / 2) {
    return cudaErrorInvalidValue;  // positions in a head, and heads, are 32-bit numbers here
  }
  if (plan.blocks > INT_MAX / 2) return cudaErrorInvalidConfiguration;
  const ForwardArguments arguments = make_arguments(pass, plan, workspace);
  const cudaError_t error = launch_for(problem.element, [&]<Element kElement>() {
    return launch_for_dim(plan.dim, [&]<int kDim>() {
      return launch_forward<kElement, kDim>(arguments, plan, stream);
    });
  });
  if (error != cudaSuccess || plan.splits == 1) return error;
  return launch_forward_merge(arguments, stream);
}

}  // namespace flashstep::attention_cuda
