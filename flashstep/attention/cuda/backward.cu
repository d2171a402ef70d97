// backward(): from a pass to its plan and kernels.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "flashstep/attention/cuda/backward_launch.h"
#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/dispatch.h"
#include "flashstep/attention/cuda/kernels.h"

namespace flashstep::attention_cuda {

using attention_kernel::kLog2E;

namespace {

template <Arithmetic kArithmetic, int kDim>
cudaError_t launch_passes(BackwardArguments args, cudaStream_t stream) {
  const auto launch_waves = [&](const BackwardGrid& grid, const auto& launch) {
    cudaError_t error = cudaSuccess;
    for (args.first_chunk = 0; error == cudaSuccess && args.first_chunk < grid.chunks;
         args.first_chunk += grid.wave_chunks)
      error = launch(args, stream);
    return error;
  };
  const cudaError_t error = launch_waves(args.plan.keys, launch_backward_keys<kArithmetic, kDim>);
  if (error != cudaSuccess || args.plan.one_pass) return error;
  return launch_waves(args.plan.queries, launch_backward_queries<kArithmetic, kDim>);
}

template <Arithmetic kArithmetic>
cudaError_t launch_dim(const BackwardArguments& args, cudaStream_t stream) {
  return launch_for_dim(args.plan.padded_dim,
                        [&]<int kDim>() { return launch_passes<kArithmetic, kDim>(args, stream); });
}

cudaError_t launch_arithmetic(const BackwardArguments& args, cudaStream_t stream) {
  switch (args.plan.arithmetic) {
    case Arithmetic::kBfloat16:
      return launch_dim<Arithmetic::kBfloat16>(args, stream);
    case Arithmetic::kFloat16:
      return launch_dim<Arithmetic::kFloat16>(args, stream);
    case Arithmetic::kTf32:
      return launch_dim<Arithmetic::kTf32>(args, stream);
    case Arithmetic::kTf32x3:
      return launch_dim<Arithmetic::kTf32x3>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t backward(const Backward& pass, const BackwardPlan& plan, void* workspace,
                     cudaStream_t stream) {
  BackwardArguments args = {};
  args.pass = pass;
  args.pass.problem = attention_kernel::with_bounded_mask(pass.problem);
  args.plan = plan;
  args.scale_log2 = static_cast<float>(
      std::clamp(args.pass.problem.scale * kLog2E, -1.0 * FLT_MAX, 1.0 * FLT_MAX));
  // Steps and blocks are counted in 32 bits on the device.
  const int64_t steps = std::max(plan.keys.chunk_steps * plan.keys.chunks,
                                 plan.queries.chunk_steps * plan.queries.chunks);
  if (std::max({steps, plan.keys.blocks, plan.queries.blocks}) > INT_MAX)
    return cudaErrorInvalidConfiguration;
  float* const floats = static_cast<float*>(workspace);
  args.logsumexp = floats + plan.logsumexp_at;
  args.row_dots = floats + plan.row_dots_at;
  args.turns = reinterpret_cast<int*>(floats + plan.turns_at);
  args.q_sums = floats + plan.q_sums_at;
  args.k_sums = floats + plan.k_sums_at;
  args.v_sums = floats + plan.v_sums_at;

  cudaError_t error = launch_backward_prepare(args, stream);
  if (error == cudaSuccess) error = launch_arithmetic(args, stream);
  if (error == cudaSuccess && (plan.q_slices > 0 || plan.k_slices > 0))
    error = launch_backward_finish(args, stream);
  return error;
}

}  // namespace flashstep::attention_cuda
