// float32 as sums of two bfloat16: x = high + low, but for 2^-17 of x.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep::products_cuda {

// Three copies of a matrix (rows, columns) with dense rows, each of high or low.
struct SplitArguments {
  const float* x;
  int64_t rows, columns, stride;  // stride: elements from row to row
  void* pieces;                   // bfloat16
  int64_t pieces_stride;          // elements from row to row of a copy
  int64_t step;                   // elements from copy to copy
  bool low_first;                 // low, high, high; else high, low, high
};

cudaError_t split(const SplitArguments& arguments, cudaStream_t stream);

}  // namespace flashstep::products_cuda
