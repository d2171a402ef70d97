// Sums of rows with equal ids, in the order of their positions. Ids are sorted, so that equal ones
// stand together; chunks of sorted positions are summed side by side, and what lies across chunks
// is put together after them, in order. However frequent an id is, no block does all its work.
#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 128;  // of a block, each with its columns
constexpr int kAhead = 8;      // rows that are loaded before the first of them is added

template <int kWidth>
__device__ void add_to(float (&sum)[kWidth], const float (&x)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] += x[i];
}

// A row of the gradient: the sum, or what was there and the sum.
template <typename W, int kWidth>
__device__ void finish(const EmbeddingBackward& a, int32_t id, int64_t column,
                       float (&sum)[kWidth]) {
  W* row = static_cast<W*>(a.dweight) + id * a.width + column;
  if (a.adds) {
    float before[kWidth];
    read(row, before);
    add_to(sum, before);
  }
  write(row, sum);
}

// The sums of one chunk. A segment (positions of one id) that lies in it is finished; one that came
// from the chunk before leaves its part in partials[chunk][0], one that only begins here in
// partials[chunk][1].
template <typename X, typename W, int kWidth>
__global__ void __launch_bounds__(kThreads)
    embedding_chunks_kernel(const __grid_constant__ EmbeddingBackward a) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (column >= a.width) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kEmbeddingChunk;
  const int64_t end = min(begin + kEmbeddingChunk, a.positions);
  const X* dy = static_cast<const X*>(a.dy) + column;
  float* partials = a.partials + 2 * static_cast<int64_t>(blockIdx.x) * a.width + column;
  const bool came = begin > 0 && a.ids[begin - 1] == a.ids[begin];
  const bool goes = end < a.positions && a.ids[end] == a.ids[end - 1];

  bool is_first = true;  // segment of the chunk
  float sum[kWidth] = {};
  for (int64_t base = begin; base < end; base += kAhead) {
    float rows[kAhead][kWidth];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i < end) read(dy + a.order[base + i] * a.width, rows[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t position = base + i;
      if (position >= end) break;
      add_to(sum, rows[i]);
      const bool ends = position + 1 == end || a.ids[position + 1] != a.ids[position];
      if (!ends) continue;
      if (is_first && came) {
        write(partials, sum);
      } else if (position + 1 == end && goes) {
        write(partials + a.width, sum);
      } else {
        finish<W>(a, a.ids[position], column, sum);
      }
      is_first = false;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] = 0;
    }
  }
}

// The block of the chunk in which a segment begins that goes on puts its parts together.
template <typename W, int kWidth>
__global__ void __launch_bounds__(kThreads)
    embedding_join_kernel(const __grid_constant__ EmbeddingBackward a, int64_t chunks) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (column >= a.width) return;
  const int64_t chunk = blockIdx.x, begin = chunk * kEmbeddingChunk;
  const int64_t end = begin + kEmbeddingChunk;
  if (end >= a.positions || a.ids[end] != a.ids[end - 1]) return;  // nothing goes on
  const int32_t id = a.ids[end - 1];
  if (begin > 0 && a.ids[begin - 1] == id) return;  // it began before
  float sum[kWidth], part[kWidth];
  read(a.partials + (2 * chunk + 1) * a.width + column, sum);
#pragma unroll 4
  for (int64_t next = chunk + 1; next < chunks && a.ids[next * kEmbeddingChunk] == id; ++next) {
    read(a.partials + 2 * next * a.width + column, part);
    add_to(sum, part);
  }
  finish<W>(a, id, column, sum);
}

template <typename X, typename W, int kWidth>
void launch(const EmbeddingBackward& a, cudaStream_t stream) {
  const int64_t chunks = divide_up(a.positions, kEmbeddingChunk);
  const dim3 blocks(static_cast<unsigned>(chunks),
                    static_cast<unsigned>(divide_up(a.width, kThreads * kWidth)));
  embedding_chunks_kernel<X, W, kWidth><<<blocks, kThreads, 0, stream>>>(a);
  embedding_join_kernel<W, kWidth><<<blocks, kThreads, 0, stream>>>(a, chunks);
}

}  // namespace

cudaError_t embedding_backward(const EmbeddingBackward& a, cudaStream_t stream) {
  if (a.positions == 0 || a.width == 0) return cudaSuccess;
  const bool vectors =
      a.width % kVector == 0 && is_aligned(a.dy) && is_aligned(a.dweight) && is_aligned(a.partials);
  return with_type(a.type, [&](auto x_type) {
    return with_type(a.weight_type, [&](auto weight_type) {
      using X = decltype(x_type);
      using W = decltype(weight_type);
      vectors ? launch<X, W, kVector>(a, stream) : launch<X, W, 1>(a, stream);
      return cudaGetLastError();
    });
  });
}

}  // namespace flashstep::ops_cuda
