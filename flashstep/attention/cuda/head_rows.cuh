// Rows of a head of the arguments.
#pragma once

#include "flashstep/attention/cuda/tile.cuh"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Input;
using attention_kernel::Output;

template <int kElementBytes>
__device__ inline char* head_data(const Output& output, int64_t batch, int64_t head) {
  return static_cast<char*>(output.data) +
         (batch * output.strides.batch + head * output.strides.head) * kElementBytes;
}

template <int kElementBytes>
__device__ inline RowSource head_rows(const Input& input, int64_t batch, int64_t head, int64_t rows,
                                      int head_dim) {
  const char* const data =
      static_cast<const char*>(input.data) +
      (batch * input.strides.batch + head * input.strides.head) * kElementBytes;
  return {data, input.strides.row * kElementBytes, rows, head_dim * kElementBytes / kChunkBytes};
}

}  // namespace flashstep::attention_cuda
