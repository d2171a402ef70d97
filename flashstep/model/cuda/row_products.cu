#include <algorithm>

#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/model/cuda/decode.h"
#include "flashstep/ops/cuda/swiglu.cuh"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::model_cuda {
namespace {

using attention_cuda::allow_next_kernel;
using attention_cuda::launch_after;
using attention_cuda::wait_for_previous_kernel;
using ops_cuda::block_sum;
using ops_cuda::divide_up;
using ops_cuda::kVector;
using ops_cuda::kWarpLanes;
using ops_cuda::Packed;
using ops_cuda::unpack;
using ops_cuda::warp_sum;
using ops_cuda::with_type;

// ---- The embedding

constexpr int kEmbedThreads = 256;

template <typename T>
__global__ void embed_token_kernel(const __grid_constant__ EmbedToken a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kEmbedThreads + threadIdx.x;
  const T* row = static_cast<const T*>(a.table) + *a.token * a.width;
  if (i < a.width) a.x[i] = static_cast<float>(row[i]);
}

// ---- Products: a warp takes a row at a time, x lies in shared memory.

constexpr int kProductWarps = 8, kProductThreads = kProductWarps * kWarpLanes;
constexpr int kBlocksAtOnce = 2;   // on a multiprocessor
constexpr int kBytesAtOnce = 128;  // that a thread has in flight: half as many are slower
constexpr int kMostSharedBytes = kWidestRow * sizeof(float);

// Nothing is read again before all else has been.
template <typename T>
__device__ Packed<T> load_once(const T* p) {
  Packed<T> v;
#pragma unroll
  for (size_t i = 0; i < sizeof(v) / sizeof(uint4); ++i)
    v.words[i] = __ldcs(reinterpret_cast<const uint4*>(p) + i);
  return v;
}

// A row of x, zeros up to a multiple of a warp's vectors. The four first of eight elements, then
// the four last: neighbouring lanes read neighbouring words.
struct SharedRow {
  float4* words;
  int count;  // of vectors, zeros included
  __device__ void write(int vector, const float (&x)[kVector]) const {
    words[vector] = make_float4(x[0], x[1], x[2], x[3]);
    words[vector + count] = make_float4(x[4], x[5], x[6], x[7]);
  }
  __device__ void read(int vector, float (&x)[kVector]) const {
    const float4 low = words[vector], high = words[vector + count];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
};

// x, or rms_norm(x), into shared memory, once the kernel before has written x.
__device__ void share_x(const RowProducts& a, const SharedRow& shared) {
  __shared__ float sums[kProductWarps];
  const auto first = static_cast<int>(threadIdx.x);
  const auto vectors = static_cast<int>(a.width / kVector);
  float first_weight[kVector] = {};
  if (a.norm_weight != nullptr && first < vectors)
    ops_cuda::read(a.norm_weight + first * kVector, first_weight);
  wait_for_previous_kernel();
  float squares = 0;
#pragma unroll 4
  for (int v = first; v < shared.count; v += kProductThreads) {
    float x[kVector] = {};
    if (v < vectors) ops_cuda::read(a.x + v * kVector, x);
    if (a.norm_weight != nullptr) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) squares = fmaf(x[i], x[i], squares);
    }
    shared.write(v, x);
  }
  if (a.norm_weight != nullptr) {
    squares = block_sum<kProductWarps>(squares, sums);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
    for (int v = first; v < vectors; v += kProductThreads) {
      float x[kVector], weight[kVector];
      shared.read(v, x);
      if (v != first) ops_cuda::read(a.norm_weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        x[i] = (v == first ? first_weight[i] : weight[i]) * (x[i] * rstd);
      shared.write(v, x);
    }
  }
  __syncthreads();
}

template <typename T, int kRows>
__global__ void __launch_bounds__(kProductThreads, kBlocksAtOnce)
    row_products_kernel(const __grid_constant__ RowProducts a, int tasks) {
  constexpr int kSteps = kBytesAtOnce / static_cast<int>(sizeof(Packed<T>)) / kRows;
  extern __shared__ float4 shared_words[];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const auto vectors = static_cast<int>(a.width / kVector);
  const int steps = (vectors + kWarpLanes - 1) / kWarpLanes;  // of a row
  const SharedRow shared{shared_words, steps * kWarpLanes};

  // A warp takes rows task, task + stride, ... of all matrices, or of both gated ones, a vector a
  // lane at each step, and reads kSteps ahead.
  const int stride = static_cast<int>(gridDim.x) * kProductWarps;
  int task =
      static_cast<int>(blockIdx.x) * kProductWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  int ahead = task, ahead_vector = lane;
  const T* rows[kRows];
  const auto find_rows = [&] {
    int row = ahead, matrix = 0;
    if constexpr (kRows == 1) {
      for (; matrix < 2 && row >= a.rows[matrix]; ++matrix) row -= static_cast<int>(a.rows[matrix]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      rows[i] = static_cast<const T*>(a.weights[matrix + i]) + row * a.width;
  };
  find_rows();
  Packed<T> weights[kSteps][kRows] = {};
  int last = ahead < tasks ? vectors : 0;
  const auto fetch = [&](int slot) {
    if (ahead_vector < last) {  // else what is there is multiplied by zeros
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        weights[slot][i] = load_once(rows[i] + ahead_vector * kVector);
    }
    ahead_vector += kWarpLanes;
    if (ahead_vector < shared.count) return;
    ahead_vector = lane;
    ahead += stride;
    if (ahead < tasks) {
      find_rows();
    } else {
      last = 0;
    }
  };
#pragma unroll
  for (int slot = 0; slot < kSteps; ++slot) fetch(slot);  // no kernel before writes weights
  allow_next_kernel();
  share_x(a, shared);

  float sums[kRows] = {};
  int vector = lane;
  while (task < tasks) {
#pragma unroll
    for (int slot = 0; slot < kSteps; ++slot) {
      float x[kVector];
      shared.read(vector, x);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float weight[kVector];
        unpack(weights[slot][i], weight);
#pragma unroll
        for (int j = 0; j < kVector; ++j) sums[i] = fmaf(weight[j], x[j], sums[i]);
      }
      fetch(slot);
      vector += kWarpLanes;
      if (vector < shared.count) continue;
#pragma unroll
      for (int i = 0; i < kRows; ++i) sums[i] = warp_sum(sums[i]);
      if (lane == 0 && task < tasks) {
        float y = sums[0];
        if constexpr (kRows == 2) y = y * ops_cuda::sigmoid<float>(y) * sums[1];
        a.y[task] = a.added == nullptr ? y : a.added[task] + y;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) sums[i] = 0;
      vector = lane;
      task += stride;
    }
  }
}

template <typename T, int kRows>
cudaError_t multiply(const RowProducts& a, cudaStream_t stream) {
  const int64_t tasks = a.is_gated ? a.rows[0] : a.rows[0] + a.rows[1] + a.rows[2];
  const int64_t blocks = std::min<int64_t>(divide_up(tasks, kProductWarps),
                                           int64_t{kBlocksAtOnce} * a.multiprocessors);
  constexpr auto kKernel = row_products_kernel<T, kRows>;
  int ptx_version = 0;
  const cudaError_t error = attention_cuda::prepare_kernel<kKernel>(kMostSharedBytes, ptx_version);
  if (error != cudaSuccess) return error;
  constexpr int64_t kOfAWarp = kWarpLanes * kVector;
  const int64_t bytes =
      divide_up(a.width, kOfAWarp) * kOfAWarp * static_cast<int64_t>(sizeof(float));
  return launch_after<kKernel>(static_cast<unsigned>(blocks), kProductThreads,
                               static_cast<int>(bytes), stream, a, static_cast<int>(tasks));
}

}  // namespace

cudaError_t embed_token(const EmbedToken& a, cudaStream_t stream) {
  return with_type(a.type, [&](auto type) {
    return launch_after<embed_token_kernel<decltype(type)>>(
        static_cast<unsigned>(divide_up(a.width, kEmbedThreads)), kEmbedThreads, 0, stream, a);
  });
}

cudaError_t row_products(const RowProducts& a, cudaStream_t stream) {
  return with_type(a.type, [&](auto type) {
    using T = decltype(type);
    return a.is_gated ? multiply<T, 2>(a, stream) : multiply<T, 1>(a, stream);
  });
}

}  // namespace flashstep::model_cuda
