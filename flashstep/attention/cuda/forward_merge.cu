// The second kernel of a pass whose keys are split: sums the parts, in an order that their number
// fixes.
//
// With r_s, l_s, o_s the reference, sum and output of part s (forward_softmax.cuh) and r = max_s
// r_s:
//   l = sum_s 2^(r_s - r) l_s,   out = sum_s 2^(r_s - r) o_s / l,   logsumexp = ln(2) (r + log2 l).
#include <algorithm>

#include "flashstep/attention/cuda/dispatch.h"
#include "flashstep/attention/cuda/forward_launch.h"
#include "flashstep/attention/cuda/forward_output.cuh"
#include "flashstep/attention/cuda/launch.cuh"

namespace flashstep::attention_cuda {
namespace {

constexpr int kThreads = 128;                 // of a block, about
constexpr int kColumns = 4;                   // of a thread: one 16-byte load of a part's output
constexpr int kMostColumns = 256 / kColumns;  // threads of a row
constexpr int kMostGroups = 8;                // of parts, summed side by side

// Parts of a row that blocks have written: of the keys that its tile sees.
__device__ Keys parts_of_row(const ForwardArguments& a, int batch, int row) {
  const Keys keys = keys_of_tile<true>(a, batch, row / a.tile_rows);
  if (keys.begin >= keys.end) return {0, 0};
  return {keys.begin / a.keys_per_split, (keys.end + a.keys_per_split - 1) / a.keys_per_split};
}

// A weighted sum of parts' outputs, and of their sums, relative to a reference.
struct PartSum {
  float reference, sum;
  float4 out;

  __device__ void add(float of_reference, float of_sum, float4 of_out) {
    // 0: no finite score for this query. A sum that is NaN is not, and stays NaN.
    if (of_sum == 0.0f) return;
    const float larger = fmaxf(reference, of_reference);
    const float old_factor = exp2_approx(reference - larger);
    const float factor = exp2_approx(of_reference - larger);
    reference = larger;
    sum = fmaf(sum, old_factor, of_sum * factor);
    out.x = fmaf(out.x, old_factor, of_out.x * factor);
    out.y = fmaf(out.y, old_factor, of_out.y * factor);
    out.z = fmaf(out.z, old_factor, of_out.z * factor);
    out.w = fmaf(out.w, old_factor, of_out.w * factor);
  }
};

// Threads of a block: columns of a row, groups of parts, rows. Of G groups, group g sums the parts
// g, g + G, ...; the first sums the groups' results, in their order.
template <Element kElement>
__global__ void merge_kernel(const __grid_constant__ ForwardArguments a) {
  __shared__ PartSum of_groups[kMostGroups * kMostColumns];
  const auto& problem = a.pass.problem;
  const int64_t rows = problem.batches * problem.heads * a.n;
  const int64_t head_row = int64_t{blockIdx.x} * blockDim.z + threadIdx.z;
  const int column = threadIdx.x * kColumns;
  const int row = static_cast<int>(head_row % a.n);
  const int64_t head = head_row / a.n;
  const int batch = static_cast<int>(head / problem.heads);
  const Keys parts = head_row < rows ? parts_of_row(a, batch, row) : Keys{0, 0};
  wait_for_previous_kernel();

  PartSum total{kMinusInfinity, 0.0f, {}};
#pragma unroll 8  // loads in flight: they take most of the time
  for (int s = parts.begin + threadIdx.y; s < parts.end; s += blockDim.y) {
    const float2 state = a.partial_state[s * rows + head_row];
    total.add(state.x, state.y,
              *reinterpret_cast<const float4*>(a.partial_out +
                                               (s * rows + head_row) * problem.head_dim + column));
  }
  if (blockDim.y > 1) {
    const int place = threadIdx.z * blockDim.y * blockDim.x + threadIdx.x;  // of the first group
    of_groups[place + threadIdx.y * blockDim.x] = total;
    __syncthreads();
    for (int group = 1; group < blockDim.y && threadIdx.y == 0; ++group) {
      const PartSum& other = of_groups[place + group * blockDim.x];
      total.add(other.reference, other.sum, other.out);
    }
  }
  if (head_row >= rows || threadIdx.y > 0) return;
  const bool fully_masked = sees_nothing<true>(a, batch, row);
  const float inverse = fully_masked ? 0.0f : 1.0f / total.sum;
  const auto& strides = a.pass.out.strides;
  char* const to =
      static_cast<char*>(a.pass.out.data) +
      (batch * strides.batch + head % problem.heads * strides.head + row * strides.row + column) *
          element_bytes(kElement);
  ElementTraits<kElement>::store_pair(to, total.out.x * inverse, total.out.y * inverse);
  ElementTraits<kElement>::store_pair(to + 2 * element_bytes(kElement), total.out.z * inverse,
                                      total.out.w * inverse);
  if (column == 0)
    a.pass.logsumexp[head_row] =
        fully_masked ? kMinusInfinity : natural_logsumexp(total.reference, total.sum);
}

template <Element kElement>
cudaError_t launch_merge(const ForwardArguments& a, cudaStream_t stream) {
  const auto& problem = a.pass.problem;
  const int columns = problem.head_dim / kColumns;
  const int groups = std::clamp(a.splits / 2, 1, kMostGroups);
  const int block_rows = std::max(1, kThreads / (columns * groups));
  const int64_t rows = problem.batches * problem.heads * a.n;
  return launch_after<merge_kernel<kElement>>(
      dim3(static_cast<unsigned>((rows + block_rows - 1) / block_rows)),
      dim3(columns, groups, block_rows), 0, stream, a);
}

}  // namespace

cudaError_t launch_forward_merge(const ForwardArguments& arguments, cudaStream_t stream) {
  return launch_for(arguments.pass.problem.element,
                    [&]<Element kElement>() { return launch_merge<kElement>(arguments, stream); });
}

}  // namespace flashstep::attention_cuda
