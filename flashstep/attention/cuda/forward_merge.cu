// The second kernel of a pass whose keys are split: sums the parts, in the order of the splits.
//
// With r_s, l_s, o_s the reference, sum and output of part s (forward_softmax.cuh) and r = max_s
// r_s:
//   l = sum_s 2^(r_s - r) l_s,   out = sum_s 2^(r_s - r) o_s / l,   logsumexp = ln(2) (r + log2 l).
#include "flashstep/attention/cuda/forward_launch.h"
#include "flashstep/attention/cuda/forward_output.cuh"
#include "flashstep/attention/cuda/launch.cuh"

namespace flashstep::attention_cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;  // of a thread: one 16-byte load of a part's output

// Parts of a row that blocks have written.
__device__ int parts_of_row(const ForwardArguments& a, int row) {
  const int keys = keys_of_tile(a, row / a.tile_rows);
  return (keys + a.keys_per_split - 1) / a.keys_per_split;
}

template <Element kElement>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ ForwardArguments a) {
  const auto& problem = a.pass.problem;
  const int lanes = problem.head_dim / kColumns;  // threads of a row
  const int64_t rows = problem.batches * problem.heads * a.n;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t head_row = index / lanes;
  const int column = static_cast<int>(index % lanes) * kColumns;
  if (head_row >= rows) return;
  const int row = static_cast<int>(head_row % a.n);
  const int parts = parts_of_row(a, row);
  wait_for_previous_kernel();

  float reference = kMinusInfinity;
  float sum = 0.0f;
  float4 out = {};
#pragma unroll 8  // loads in flight: they take most of the time
  for (int s = 0; s < parts; ++s) {
    const float2 state = a.partial_state[s * rows + head_row];
    const float4 part = *reinterpret_cast<const float4*>(
        a.partial_out + (s * rows + head_row) * problem.head_dim + column);
    // 0: the part has no finite score for this query. A sum that is NaN is not, and stays NaN.
    if (state.y != 0.0f) {
      const float larger = fmaxf(reference, state.x);
      const float old_factor = exp2_approx(reference - larger);
      const float factor = exp2_approx(state.x - larger);
      reference = larger;
      sum = fmaf(sum, old_factor, state.y * factor);
      out.x = fmaf(out.x, old_factor, part.x * factor);
      out.y = fmaf(out.y, old_factor, part.y * factor);
      out.z = fmaf(out.z, old_factor, part.z * factor);
      out.w = fmaf(out.w, old_factor, part.w * factor);
    }
  }
  const bool fully_masked = row + a.diagonal < 0;  // sees no key
  const float inverse = fully_masked ? 0.0f : 1.0f / sum;
  const int64_t head = head_row / a.n;
  const auto& strides = a.pass.out.strides;
  char* const to = static_cast<char*>(a.pass.out.data) +
                   (head / problem.heads * strides.batch + head % problem.heads * strides.head +
                    row * strides.row + column) *
                       element_bytes(kElement);
  ElementTraits<kElement>::store_pair(to, out.x * inverse, out.y * inverse);
  ElementTraits<kElement>::store_pair(to + 2 * element_bytes(kElement), out.z * inverse,
                                      out.w * inverse);
  if (column == 0)
    a.pass.logsumexp[head_row] = fully_masked ? kMinusInfinity : natural_logsumexp(reference, sum);
}

template <Element kElement>
cudaError_t launch_merge(const ForwardArguments& a, cudaStream_t stream) {
  const auto& problem = a.pass.problem;
  const int64_t threads = problem.batches * problem.heads * a.n * (problem.head_dim / kColumns);
  return launch_after<merge_kernel<kElement>>(dim3((threads + kThreads - 1) / kThreads),
                                              dim3(kThreads), 0, stream, a);
}

}  // namespace

cudaError_t launch_forward_merge(const ForwardArguments& arguments, cudaStream_t stream) {
  switch (arguments.pass.problem.element) {
    case Element::kFloat32:
      return launch_merge<Element::kFloat32>(arguments, stream);
    case Element::kBfloat16:
      return launch_merge<Element::kBfloat16>(arguments, stream);
    case Element::kFloat16:
      return launch_merge<Element::kFloat16>(arguments, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flashstep::attention_cuda
