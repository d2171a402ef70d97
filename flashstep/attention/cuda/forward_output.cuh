// The end of a block of the forward kernel: its rows of the output, or its part of them.
#pragma once

#include "flashstep/attention/cuda/element.cuh"
#include "flashstep/attention/cuda/forward_softmax.cuh"
#include "flashstep/attention/cuda/forward_work.cuh"

namespace flashstep::attention_cuda {

constexpr float kLn2 = 0.69314718055994531f;

// Of one row: natural logarithm of sum_j exp(scale s_j), from base 2 relative to a reference.
__device__ inline float natural_logsumexp(float reference, float sum) {
  if (sum == 0.0f) return __builtin_nanf("");  // scores all -infinity have no softmax
  return (reference + log2f(sum)) * kLn2;
}

// Writes out / sum and the log-sum-exp of a warp's rows, of which `row` is this lane's first.
template <Element kElement, bool kWindow, int kRowBlocks, int kOutBlocks>
__device__ inline void write_rows(const ForwardArguments& a, const ForwardWork& work, int row,
                                  const RowState<kRowBlocks>& state,
                                  const float (&out)[kRowBlocks][kOutBlocks][4]) {
  const auto& to = a.pass.out;
  char* const head =
      static_cast<char*>(to.data) +
      (work.batch * to.strides.batch + work.head * to.strides.head) * element_bytes(kElement);
  const int64_t head_rows = (work.batch * a.pass.problem.heads + work.head) * a.n;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = row + 16 * b + 8 * h;
      const float sum = quad_sum(state.sum[b][h]);
      const bool fully_masked = sees_nothing<kWindow>(a, work.batch, query);
      const float inverse = fully_masked ? 0.0f : 1.0f / sum;
      char* const line =
          query < a.n ? head + query * to.strides.row * element_bytes(kElement) : nullptr;
      put_row<kElement, kOutBlocks>(line, a.pass.problem.head_dim, [&](int block, int i) {
        return out[b][block][2 * h + i] * inverse;
      });
      if (line != nullptr && threadIdx.x % 4 == 0) {
        a.pass.logsumexp[head_rows + query] =
            fully_masked ? kMinusInfinity
                         : natural_logsumexp(state.reference(b, h, a.scale_log2), sum);
      }
    }
  }
}

// Writes what the merge needs of a part of the keys: out as it is, reference and sum.
template <int kRowBlocks, int kOutBlocks>
__device__ inline void write_partial_rows(const ForwardArguments& a, const ForwardWork& work,
                                          int row, const RowState<kRowBlocks>& state,
                                          const float (&out)[kRowBlocks][kOutBlocks][4]) {
  const auto& problem = a.pass.problem;
  const int64_t head_rows =
      (work.split * problem.batches * problem.heads + work.batch * problem.heads + work.head) * a.n;
  const int lane_column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = row + 16 * b + 8 * h;
      const float sum = quad_sum(state.sum[b][h]);
      if (query >= a.n) continue;
      float* const line = a.partial_out + (head_rows + query) * problem.head_dim + lane_column;
#pragma unroll
      for (int j = 0; j < kOutBlocks; ++j) {
        if (8 * j < problem.head_dim) {
          *reinterpret_cast<float2*>(line + 8 * j) =
              make_float2(out[b][j][2 * h], out[b][j][2 * h + 1]);
        }
      }
      if (lane_column == 0) {
        a.partial_state[head_rows + query] = make_float2(state.reference(b, h, a.scale_log2), sum);
      }
    }
  }
}

}  // namespace flashstep::attention_cuda
