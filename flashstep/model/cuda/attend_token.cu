#include <cmath>
#include <numbers>
#include <type_traits>

#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/model/cuda/decode.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::model_cuda {
namespace {

using attention_cuda::allow_next_kernel;
using attention_cuda::exp2_approx;
using attention_cuda::launch_after;
using attention_cuda::wait_for_previous_kernel;
using ops_cuda::kVector;
using ops_cuda::kWarpLanes;
using ops_cuda::Packed;
using ops_cuda::unpack;
using ops_cuda::with_type;

// Warps of a block take heads that share their keys, or parts of one head's. Blocks
// divide the keys, as many as run at once; the last one to be done adds up.

constexpr int kAttendWarps = 16, kAttendThreads = kAttendWarps * kWarpLanes;
constexpr int kAttendBlocksAtOnce = 1;   // on a multiprocessor
constexpr int kAttendBytesAtOnce = 128;  // of keys and values, that a thread has in flight
constexpr int kFewestKeys = 8;           // that a warp takes

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
  const int64_t most = (keys + d.parts * kFewestKeys - 1) / (d.parts * kFewestKeys);
  const int64_t blocks = kAttendBlocksAtOnce * a.multiprocessors / (a.kv_heads * d.head_blocks);
  d.key_blocks = static_cast<int>(blocks < 1 ? 1 : blocks < most ? blocks : most);
  return d;
}

// softmax(scores) times values, of the keys so far: divided by `sum` at the end. Scores are in
// powers of two. A lane has eight elements of the row, the kLanes lanes of a team all of them, and
// each team of a warp keys of its own.
struct Attended {
  float largest = -INFINITY, sum = 0;
  float row[kVector] = {};

  __device__ void rescale(float now) {
    const float factor = largest == now ? 1.0f : exp2_approx(largest - now);
    largest = now;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kVector; ++i) row[i] *= factor;
  }
  __device__ void add(float weight, float of_sum, const float (&values)[kVector]) {
    sum = fmaf(weight, of_sum, sum);
#pragma unroll
    for (int i = 0; i < kVector; ++i) row[i] = fmaf(weight, values[i], row[i]);
  }
};

template <int kLanes>
__device__ float team_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// All teams have what they have together.
template <int kLanes>
__device__ void join_teams(Attended& attended) {
#pragma unroll
  for (int step = kLanes; step < kWarpLanes; step *= 2) {
    const float largest = __shfl_xor_sync(~0u, attended.largest, step);
    const float sum = __shfl_xor_sync(~0u, attended.sum, step);
    float row[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) row[i] = __shfl_xor_sync(~0u, attended.row[i], step);
    const float now = fmaxf(attended.largest, largest);
    if (now == -INFINITY) continue;  // neither has a key
    attended.rescale(now);
    attended.add(exp2_approx(largest - now), sum, row);
  }
}

// Several shares of a head's keys, `stride` floats apart, in shared or global memory: the largest
// score, the sum, and behind 16 bytes the row.
constexpr int kRowOfShare = 4;

template <int kLanes>
struct Shares {
  float* first;
  int64_t stride;
  int dim, lane;
  int at = lane % kLanes * kVector;  // in a row

  __device__ void write(int index, const Attended& attended) const {
    float* const share = first + index * stride;
    if (lane == 0) {
      share[0] = attended.largest;
      share[1] = attended.sum;
    }
    if (lane < kLanes && at < dim) ops_cuda::write(share + kRowOfShare + at, attended.row);
  }
  // Shares begin, begin + step, ... below `end` together.
  __device__ Attended joined(int begin, int end, int step) const {
    Attended all;
    constexpr int kTeams = kWarpLanes / kLanes;
#pragma unroll 4
    for (int i = begin + lane / kLanes * step; i < end; i += kTeams * step) {
      const float* const share = first + i * stride;
      float row[kVector] = {};
      if (at < dim) ops_cuda::read(share + kRowOfShare + at, row);
      const float now = fmaxf(all.largest, share[0]);
      if (now == -INFINITY) continue;
      all.rescale(now);
      all.add(exp2_approx(share[0] - now), share[1], row);
    }
    join_teams<kLanes>(all);
    return all;
  }
};

template <typename T, int kLanes>
__global__ void __launch_bounds__(kAttendThreads, kAttendBlocksAtOnce)
    attend_token_kernel(const __grid_constant__ AttendToken a) {
  constexpr int kTeams = kWarpLanes / kLanes;
  constexpr int kSteps = kAttendBytesAtOnce / static_cast<int>(sizeof(Packed<T>)) / 2;
  constexpr int kShare = kLanes * kVector + kRowOfShare;
  alignas(16) __shared__ float shared[kAttendWarps * kShare];
  __shared__ bool is_last;
  allow_next_kernel();
  const Division division = divide(a);
  const int dim = static_cast<int>(a.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int part = warp / division.heads, of_block = warp % division.heads;
  const int of_group = static_cast<int>(blockIdx.z) * division.heads + of_block;
  const bool has_head = part < division.parts && of_group < division.group;
  const int64_t kv_head = blockIdx.y, head = kv_head * division.group + of_group;
  const int at = lane % kLanes * kVector;  // of a row
  const bool has_part = has_head && at < dim;

  // Which keys this block and this team have.
  const int64_t position = *a.position;
  const int64_t begin = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
  const int64_t count = position + 1 - begin;
  const int64_t least = division.parts * kFewestKeys;
  int64_t share = (count + gridDim.x - 1) / gridDim.x;
  if (share < least) share = least;
  const auto blocks = static_cast<int>((count + share - 1) / share);
  const auto block = static_cast<int>(blockIdx.x);
  if (block >= blocks) return;
  const int64_t end = min(begin + (block + 1) * share, position);  // the token's own comes last
  const int key_step = division.parts * kTeams;
  int64_t first = begin + block * share + part * kTeams + lane / kLanes;

  T* const keys = static_cast<T*>(a.keys) + kv_head * a.capacity * dim + at;
  T* const values = static_cast<T*>(a.values) + kv_head * a.capacity * dim + at;
  Packed<T> some_keys[kSteps] = {}, some_values[kSteps] = {};
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t key = first + i * key_step;
      if (!has_part || key >= end) break;
      some_keys[i] = ops_cuda::load(keys + key * dim);
      some_values[i] = ops_cuda::load(values + key * dim);
    }
  };
  fetch();  // written by tokens before
  float cos[kVector / 2] = {}, sin[kVector / 2] = {};
  if (has_part) {
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      cos[i] = a.cos[(position * dim + at) / 2 + i];
      sin[i] = a.sin[(position * dim + at) / 2 + i];
    }
  }
  const auto rotated = [&](const float* row, float(&x)[kVector]) {
    if (has_part) ops_cuda::read(row + at, x);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const float even = x[2 * i], odd = x[2 * i + 1];
      x[2 * i] = cos[i] * even - sin[i] * odd;
      x[2 * i + 1] = sin[i] * even + cos[i] * odd;
    }
  };
  wait_for_previous_kernel();

  float q[kVector] = {};
  rotated(a.qkv + head * dim, q);
  const float scale = static_cast<float>(std::numbers::log2e) / sqrtf(static_cast<float>(dim));
  const auto score_of = [&](const Packed<T>& packed) {
    float key[kVector], sum = 0;
    unpack(packed, key);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum = fmaf(q[i], key[i], sum);
    return scale * team_sum<kLanes>(sum);
  };
  Attended attended;
  const auto add = [&](float score, const Packed<T>& packed) {
    float value[kVector];
    unpack(packed, value);
    const float weight = score == -INFINITY ? 0.0f : exp2_approx(score - attended.largest);
    attended.add(weight, 1, value);
  };
  const int64_t of_warp = first - lane / kLanes;
  for (int64_t done = of_warp; done < end; done += kSteps * key_step) {
    float scores[kSteps], now = attended.largest;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float score = score_of(some_keys[i]);
      scores[i] = first + i * key_step < end ? score : -INFINITY;
      now = fmaxf(now, scores[i]);
    }
    if (first < end) attended.rescale(now);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (first + i * key_step < end) add(scores[i], some_values[i]);
    }
    first += kSteps * key_step;
    fetch();
  }
  join_teams<kLanes>(attended);
  if (has_head && block + 1 == blocks && part == 0) {
    const float* const k = a.qkv + (a.heads + kv_head) * dim;
    float key[kVector] = {}, value[kVector] = {};
    rotated(k, key);
    if (has_part) ops_cuda::read(k + a.kv_heads * dim + at, value);
    Packed<T> packed_key, packed_value;
    ops_cuda::pack(key, packed_key);
    ops_cuda::pack(value, packed_value);
    const float score = score_of(packed_key);
    attended.rescale(fmaxf(attended.largest, score));
    add(score, packed_value);
    if (of_group == 0 && has_part && lane < kLanes) {
      ops_cuda::store(keys + position * dim, packed_key);
      ops_cuda::store(values + position * dim, packed_value);
    }
  }

  const Shares<kLanes> of_warps{shared + of_block * division.parts * kShare, kShare, dim, lane};
  const auto join_parts = [&] {
    if (has_head) of_warps.write(part, attended);
    __syncthreads();
    if (has_head && part == 0) attended = of_warps.joined(0, division.parts, 1);
  };
  join_parts();
  if (blocks > 1) {
    const Shares<kLanes> of_blocks{a.partials + head * division.key_blocks * (dim + kRowOfShare),
                                   dim + kRowOfShare, dim, lane};
    if (has_head && part == 0) of_blocks.write(block, attended);
    unsigned* const arrived = a.arrived + blockIdx.y * gridDim.z + blockIdx.z;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(arrived, 1) + 1 == blocks;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) *arrived = 0;
    __threadfence();
    if (has_head) attended = of_blocks.joined(part, blocks, division.parts);
    join_parts();
  }
  if (has_part && part == 0 && lane < kLanes) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) attended.row[i] /= attended.sum;
    ops_cuda::write(a.out + head * dim + at, attended.row);
  }
}

template <typename T>
cudaError_t attend(const AttendToken& a, cudaStream_t stream) {
  const Division d = divide(a);
  const dim3 grid(d.key_blocks, static_cast<unsigned>(a.kv_heads), d.head_blocks);
  const auto run = [&](auto lanes) {
    return launch_after<attend_token_kernel<T, decltype(lanes)::value>>(grid, kAttendThreads, 0,
                                                                        stream, a);
  };
  return a.head_dim <= 8 * kVector    ? run(std::integral_constant<int, 8>())
         : a.head_dim <= 16 * kVector ? run(std::integral_constant<int, 16>())
                                      : run(std::integral_constant<int, 32>());
}

}  // namespace

int64_t attend_token_partials(const AttendToken& a) {
  const Division d = divide(a);
  return a.heads * d.key_blocks * (a.head_dim + kRowOfShare);
}

cudaError_t attend_token(const AttendToken& a, cudaStream_t stream) {
  return with_type(a.type, [&](auto type) { return attend<decltype(type)>(a, stream); });
}

}  // namespace flashstep::model_cuda
