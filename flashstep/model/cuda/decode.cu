#include <algorithm>
#include <cmath>
#include <numbers>

#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/model/cuda/decode.h"
#include "flashstep/ops/cuda/swiglu.cuh"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::model_cuda {
namespace {

using attention_cuda::allow_next_kernel;
using attention_cuda::exp2_approx;
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
constexpr int kBytesAtOnce = 128;  // that a thread has in flight
constexpr int kSharedBytes = kWidestRow * sizeof(float);

// Nothing is read again before all else has been.
template <typename T>
__device__ Packed<T> load_once(const T* p) {
  Packed<T> v;
#pragma unroll
  for (size_t i = 0; i < sizeof(v) / sizeof(uint4); ++i)
    v.words[i] = __ldcs(reinterpret_cast<const uint4*>(p) + i);
  return v;
}

// The four first of eight elements, then the four last: neighbouring lanes read neighbouring words.
struct SharedVectors {
  float4* words;
  int count;
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

// x, or rms_norm(x), into shared memory.
__device__ void share_x(const RowProducts& a, const SharedVectors& shared) {
  __shared__ float sums[kProductWarps];
  float squares = 0;
  for (int v = static_cast<int>(threadIdx.x); v < shared.count; v += kProductThreads) {
    float x[kVector];
    ops_cuda::read(a.x + v * kVector, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares = fmaf(x[i], x[i], squares);
    shared.write(v, x);
  }
  if (a.norm_weight != nullptr) {
    squares = block_sum<kProductWarps>(squares, sums);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
    for (int v = static_cast<int>(threadIdx.x); v < shared.count; v += kProductThreads) {
      float x[kVector], weight[kVector];
      shared.read(v, x);
      ops_cuda::read(a.norm_weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] = weight[i] * (x[i] * rstd);
      shared.write(v, x);
    }
  }
  __syncthreads();
}

// Row `task` of all matrices; of the gated ones, of matrix `which`.
template <typename T>
__device__ const T* row_of(const RowProducts& a, int64_t task, int which) {
  if (!a.is_gated) {
    for (which = 0; which < 2 && task >= a.rows[which]; ++which) task -= a.rows[which];
  }
  return static_cast<const T*>(a.weights[which]) + task * a.width;
}

template <typename T, int kRows>
__global__ void __launch_bounds__(kProductThreads, kBlocksAtOnce)
    row_products_kernel(const __grid_constant__ RowProducts a, int64_t tasks) {
  constexpr int kSteps = kBytesAtOnce / static_cast<int>(sizeof(Packed<T>)) / kRows;
  extern __shared__ float4 shared_words[];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int vectors = static_cast<int>(a.width / kVector);
  const SharedVectors shared{shared_words, vectors};
  Packed<T> weights[kRows][kSteps];
  // The vectors of a row from step `first` on.
  const auto fetch = [&](int64_t task, int first) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const T* from = row_of<T>(a, task, row);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int v = lane + (first + step) * kWarpLanes;
        if (v < vectors) weights[row][step] = load_once(from + v * kVector);
      }
    }
  };
  int64_t task = static_cast<int64_t>(blockIdx.x) * kProductWarps + threadIdx.x / kWarpLanes;
  if (task < tasks) fetch(task, 0);  // no kernel before writes weights
  allow_next_kernel();
  wait_for_previous_kernel();
  share_x(a, shared);
  while (task < tasks) {
    float sums[kRows] = {};
    const int64_t next = task + static_cast<int64_t>(gridDim.x) * kProductWarps;
    for (int first = 0; first * kWarpLanes < vectors; first += kSteps) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int v = lane + (first + step) * kWarpLanes;
        if (v >= vectors) break;
        float x[kVector];
        shared.read(v, x);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          float weight[kVector];
          unpack(weights[row][step], weight);
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[row] = fmaf(weight[i], x[i], sums[row]);
        }
      }
      const int following = first + kSteps;
      if (following * kWarpLanes < vectors) {
        fetch(task, following);
      } else if (next < tasks) {
        fetch(next, 0);
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) sums[row] = warp_sum(sums[row]);
    if (lane == 0) {
      float y = sums[0];
      if constexpr (kRows == 2) y = y * ops_cuda::sigmoid<float>(y) * sums[1];
      a.y[task] = a.added == nullptr ? y : a.added[task] + y;
    }
    task = next;
  }
}

// ---- Attention: warps of a block take heads that share their keys, or parts of one head's. Blocks
// divide the keys; the last one to be done adds up.

constexpr int kAttendWarps = 16, kAttendThreads = kAttendWarps * kWarpLanes;
constexpr int kKeysAtOnce = 8;   // of a warp; of wide heads half as many fit its registers
constexpr int kMostBlocks = 64;  // that share one head's keys

// How the heads and keys of a call are divided.
struct Division {
  int group;  // query heads a key head
  int heads;  // of them in one block
  int head_blocks;
  int parts;  // warps a head
  int key_blocks;
};

__host__ __device__ Division divide(const AttendToken& a) {
  Division d{};
  d.group = static_cast<int>(a.heads / a.kv_heads);
  d.heads = d.group < kAttendWarps ? d.group : kAttendWarps;
  d.head_blocks = (d.group + d.heads - 1) / d.heads;
  d.parts = kAttendWarps / d.heads;
  const int64_t keys = a.window > 0 && a.window < a.capacity ? a.window : a.capacity;
  const int64_t blocks = (keys + d.parts * kKeysAtOnce - 1) / (d.parts * kKeysAtOnce);
  d.key_blocks = static_cast<int>(blocks < kMostBlocks ? blocks : kMostBlocks);
  return d;
}

// Of one head, as a lane has them: elements 2 (lane + 32 i) and the next.
template <int kPairs>
struct HeadRow {
  float2 pairs[kPairs];
  template <typename T>
  __device__ void read(const T* row, int dim, int lane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = 2 * (lane + kWarpLanes * i);
      pairs[i] = at < dim ? pair_at(row + at) : make_float2(0, 0);
    }
  }
  __device__ void rotate(const float* cos, const float* sin, int dim, int lane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = lane + kWarpLanes * i;
      if (at >= dim / 2) continue;
      const float2 x = pairs[i];
      pairs[i].x = cos[at] * x.x - sin[at] * x.y;
      pairs[i].y = sin[at] * x.x + cos[at] * x.y;
    }
  }
  template <typename T>
  __device__ void round_to() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i].x = static_cast<float>(static_cast<T>(pairs[i].x));
      pairs[i].y = static_cast<float>(static_cast<T>(pairs[i].y));
    }
  }
  template <typename T>
  __device__ void write(T* row, int dim, int lane) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = 2 * (lane + kWarpLanes * i);
      if (at >= dim) continue;
      row[at] = static_cast<T>(pairs[i].x);
      row[at + 1] = static_cast<T>(pairs[i].y);
    }
  }
  __device__ float dot(const HeadRow& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      sum = fmaf(pairs[i].x, other.pairs[i].x, fmaf(pairs[i].y, other.pairs[i].y, sum));
    return sum;
  }
  __device__ void add(float factor, const HeadRow& other) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i].x = fmaf(factor, other.pairs[i].x, pairs[i].x);
      pairs[i].y = fmaf(factor, other.pairs[i].y, pairs[i].y);
    }
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) pairs[i].x *= factor, pairs[i].y *= factor;
  }

 private:
  static __device__ float2 pair_at(const float* p) { return *reinterpret_cast<const float2*>(p); }
  static __device__ float2 pair_at(const __nv_bfloat16* p) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p));
  }
  static __device__ float2 pair_at(const __half* p) {
    return __half22float2(*reinterpret_cast<const __half2*>(p));
  }
};

// softmax(scores) times values, of the keys so far: divided by `sum` at the end. Scores are in
// powers of two.
template <int kPairs>
struct Attended {
  float largest = -INFINITY, sum = 0;
  HeadRow<kPairs> row = {};

  template <int kKeys>
  __device__ void add(const float (&scores)[kKeys], const HeadRow<kPairs> (&values)[kKeys]) {
    float now = largest;
#pragma unroll
    for (int key = 0; key < kKeys; ++key) now = fmaxf(now, scores[key]);
    const float before = exp2_approx(largest - now);
    largest = now;
    sum *= before;
    row.scale(before);
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      const float weight = exp2_approx(scores[key] - now);
      sum += weight;
      row.add(weight, values[key]);
    }
  }
};

template <typename T, int kPairs>
struct TokenAttention {
  const AttendToken& a;
  const Division division;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int part = warp / division.heads;
  const int of_group = static_cast<int>(blockIdx.z) * division.heads + warp % division.heads;
  const bool has_work = part < division.parts && of_group < division.group;
  const int64_t kv_head = blockIdx.y, head = kv_head * division.group + of_group;
  const int dim = static_cast<int>(a.head_dim);

  __device__ const T* key_at(int64_t at) const {
    return static_cast<const T*>(a.keys) + (kv_head * a.capacity + at) * a.head_dim;
  }
  __device__ const T* value_at(int64_t at) const {
    return static_cast<const T*>(a.values) + (kv_head * a.capacity + at) * a.head_dim;
  }
  __device__ int slots() const { return division.key_blocks * division.parts; }
  // The largest score, the sum, then the row.
  __device__ float* partial(int slot) const {
    return a.partials + (head * slots() + slot) * (a.head_dim + 2);
  }

  __device__ HeadRow<kPairs> rotated(const float* row, int64_t position) const {
    HeadRow<kPairs> x;
    x.read(row, dim, lane);
    x.rotate(a.cos + position * dim / 2, a.sin + position * dim / 2, dim, lane);
    return x;
  }

  // Keys [begin, end) of the cache, of which this warp takes every parts-th group.
  __device__ void attend(const HeadRow<kPairs>& q, int64_t begin, int64_t end,
                         Attended<kPairs>& attended) const {
    constexpr int kKeys = kPairs > 2 ? kKeysAtOnce / 2 : kKeysAtOnce;
    for (int64_t first = begin + part * kKeys; first < end; first += division.parts * kKeys) {
      HeadRow<kPairs> keys[kKeys], values[kKeys];
      float scores[kKeys];
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if (first + i < end) {
          keys[i].read(key_at(first + i), dim, lane);
          values[i].read(value_at(first + i), dim, lane);
        } else {
          values[i] = {};
        }
      }
#pragma unroll
      for (int i = 0; i < kKeys; ++i)
        scores[i] = first + i < end ? warp_sum(q.dot(keys[i])) : -INFINITY;
      attended.add(scores, values);
    }
  }

  // What the token itself brings, of the block whose keys reach to it.
  __device__ void attend_to_itself(const HeadRow<kPairs>& q, int64_t position,
                                   Attended<kPairs>& attended) const {
    const float* k = a.qkv + (a.heads + kv_head) * a.head_dim;
    HeadRow<kPairs> key = rotated(k, position), value[1];
    value[0].read(k + a.kv_heads * a.head_dim, dim, lane);
    key.template round_to<T>();
    value[0].template round_to<T>();
    const float score[1] = {warp_sum(q.dot(key))};
    attended.add(score, value);
    if (warp == 0 && blockIdx.z == 0) {
      key.write(const_cast<T*>(key_at(position)), dim, lane);
      value[0].write(const_cast<T*>(value_at(position)), dim, lane);
    }
  }

  // This warp's share of the slots, weighed against the largest of all.
  __device__ HeadRow<kPairs> sum_of_slots(int used, float& sum) const {
    float largest = -INFINITY;
    for (int slot = lane; slot < used; slot += kWarpLanes)
      largest = fmaxf(largest, __ldcg(partial(slot)));
#pragma unroll
    for (int step = kWarpLanes / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    sum = 0;
    for (int slot = lane; slot < used; slot += kWarpLanes)
      sum = fmaf(exp2_approx(__ldcg(partial(slot)) - largest), __ldcg(partial(slot) + 1), sum);
    sum = warp_sum(sum);
    HeadRow<kPairs> row = {};
#pragma unroll 8
    for (int slot = part; slot < used; slot += division.parts) {
      HeadRow<kPairs> other;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int at = 2 * (lane + kWarpLanes * i);
        other.pairs[i] = at < dim ? __ldcg(reinterpret_cast<const float2*>(partial(slot) + 2 + at))
                                  : make_float2(0, 0);
      }
      row.add(exp2_approx(__ldcg(partial(slot)) - largest), other);
    }
    return row;
  }
};

template <typename T, int kPairs>
__global__ void __launch_bounds__(kAttendThreads)
    attend_token_kernel(const __grid_constant__ AttendToken a) {
  const TokenAttention<T, kPairs> work{a, divide(a)};
  const Division& division = work.division;
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t position = *a.position;
  const int64_t begin = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
  const int64_t count = position + 1 - begin;
  const int64_t least = division.parts * kKeysAtOnce;
  int64_t of_block = (count + gridDim.x - 1) / gridDim.x;
  if (of_block < least) of_block = least;
  const auto blocks = static_cast<unsigned>((count + of_block - 1) / of_block);
  if (blockIdx.x >= blocks) return;

  const int64_t first = begin + blockIdx.x * of_block;
  if (work.has_work) {
    HeadRow<kPairs> q = work.rotated(a.qkv + work.head * a.head_dim, position);
    q.scale(static_cast<float>(std::numbers::log2e) / sqrtf(static_cast<float>(a.head_dim)));
    Attended<kPairs> attended;
    work.attend(q, first, min(first + of_block, position), attended);
    if (blockIdx.x + 1 == blocks && work.part == 0) work.attend_to_itself(q, position, attended);
    float* const partial = work.partial(static_cast<int>(blockIdx.x) * division.parts + work.part);
    if (work.lane == 0) {
      partial[0] = attended.largest;
      partial[1] = attended.sum;
    }
    attended.row.write(partial + 2, work.dim, work.lane);
  }

  __shared__ bool is_last;
  __shared__ float rows[kAttendWarps][64 * kPairs];
  unsigned* const arrived = a.arrived + blockIdx.y * gridDim.z + blockIdx.z;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(arrived, 1) + 1 == blocks;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  float sum = 0;
  if (work.has_work) {
    const auto row = work.sum_of_slots(static_cast<int>(blocks) * division.parts, sum);
    row.write(rows[work.warp], work.dim, work.lane);
  }
  __syncthreads();
  if (work.has_work && work.part == 0) {
    for (int i = work.lane; i < work.dim; i += kWarpLanes) {
      float x = 0;
      for (int part = 0; part < division.parts; ++part)
        x += rows[work.warp + part * division.heads][i];
      a.out[work.head * a.head_dim + i] = x / sum;
    }
  }
  if (threadIdx.x == 0) *arrived = 0;
}

template <typename T>
cudaError_t attend(const AttendToken& a, cudaStream_t stream) {
  const Division d = divide(a);
  const dim3 grid(d.key_blocks, static_cast<unsigned>(a.kv_heads), d.head_blocks);
  switch (divide_up(a.head_dim, 2 * kWarpLanes)) {
    case 1:
      return launch_after<attend_token_kernel<T, 1>>(grid, kAttendThreads, 0, stream, a);
    case 2:
      return launch_after<attend_token_kernel<T, 2>>(grid, kAttendThreads, 0, stream, a);
    default:
      return launch_after<attend_token_kernel<T, 4>>(grid, kAttendThreads, 0, stream, a);
  }
}

template <typename T, int kRows>
cudaError_t multiply(const RowProducts& a, cudaStream_t stream) {
  const int64_t tasks = a.is_gated ? a.rows[0] : a.rows[0] + a.rows[1] + a.rows[2];
  const int64_t blocks = std::min<int64_t>(divide_up(tasks, kProductWarps),
                                           int64_t{kBlocksAtOnce} * a.multiprocessors);
  return launch_after<row_products_kernel<T, kRows>>(static_cast<unsigned>(blocks), kProductThreads,
                                                     kSharedBytes, stream, a, tasks);
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

int64_t attend_token_partials(const AttendToken& a) {
  const Division d = divide(a);
  return a.heads * d.key_blocks * d.parts * (a.head_dim + 2);
}

cudaError_t attend_token(const AttendToken& a, cudaStream_t stream) {
  return with_type(a.type, [&](auto type) { return attend<decltype(type)>(a, stream); });
}

}  // namespace flashstep::model_cuda
