// The kernels around the backward passes that work row by row, bound by memory.
#include "flashstep/attention/cuda/backward_launch.h"
#include "flashstep/attention/cuda/backward_sums.cuh"
#include "flashstep/attention/cuda/dispatch.h"
#include "flashstep/attention/cuda/head_rows.cuh"
#include "flashstep/attention/cuda/launch.cuh"

namespace flashstep::attention_cuda {

using attention_kernel::kLog2E;

namespace {

constexpr int kThreads = 256;
constexpr int kRowLanes = 8;  // lanes that share a row: 128 bytes at a time, one line of L2

template <Element kElement>
__device__ inline float dot_of_chunks(uint4 a, uint4 b) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const uint32_t right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kElement == Element::kFloat32) {
      sum += __uint_as_float(left[i]) * __uint_as_float(right[i]);
    } else {
      const float2 x = ElementTraits<kElement>::unpack(left[i]);
      const float2 y = ElementTraits<kElement>::unpack(right[i]);
      sum += x.x * y.x + x.y * y.y;
    }
  }
  return sum;
}

// D = rowsum(dO o O) - grad_logsumexp and logsumexp in units of log2, for padded rows too; and
// zeros where the passes add sums.
template <Element kElement>
__global__ void __launch_bounds__(kThreads)
    backward_prepare_kernel(const __grid_constant__ BackwardArguments args, float4* zeros,
                            int64_t zero_count) {
  allow_next_kernel();
  const Problem& problem = args.pass.problem;
  constexpr int kBytes = element_bytes(kElement);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t all_threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t rows = problem.batches * problem.heads * args.plan.padded_n;
  for (int64_t padded_row = thread / kRowLanes; padded_row < rows;
       padded_row += all_threads / kRowLanes) {
    const int64_t head = padded_row / args.plan.padded_n;
    const int64_t row = padded_row - head * args.plan.padded_n;
    float sum = 0;
    if (row < problem.n) {
      const auto at = [&](const Input& input) {
        return reinterpret_cast<const uint4*>(static_cast<const char*>(input.data) +
                                              (head / problem.heads * input.strides.batch +
                                               head % problem.heads * input.strides.head +
                                               row * input.strides.row) *
                                                  kBytes);
      };
      const uint4* const out = at(args.pass.out);
      const uint4* const grad_out = at(args.pass.grad_out);
      for (int chunk = threadIdx.x % kRowLanes; chunk < problem.head_dim * kBytes / kChunkBytes;
           chunk += kRowLanes)
        sum += dot_of_chunks<kElement>(out[chunk], grad_out[chunk]);
    }
#pragma unroll
    for (int distance = 1; distance < kRowLanes; distance *= 2)
      sum += __shfl_xor_sync(0xffu << (threadIdx.x % kWarp / kRowLanes * kRowLanes), sum, distance);
    if (threadIdx.x % kRowLanes != 0) continue;
    float logsumexp = INFINITY;  // exp2(finite - infinity) = 0: no weight
    if (row < problem.n) {
      const int64_t stat = head * problem.n + row;
      const float given = args.pass.logsumexp[stat];
      if (given == -INFINITY) {
        sum = 0;  // no key is seen: no gradient, whatever is given for the row
      } else {
        logsumexp = given * static_cast<float>(kLog2E);
        if (args.pass.grad_logsumexp != nullptr) sum -= args.pass.grad_logsumexp[stat];
      }
    }
    args.logsumexp[padded_row] = logsumexp;
    args.row_dots[padded_row] = sum;
  }
  for (int64_t i = thread; i < zero_count; i += all_threads) zeros[i] = make_float4(0, 0, 0, 0);
}

// One result made of float32 sums.
struct Finish {
  const float* sums;
  int64_t slice;  // floats from a slice to the next
  int64_t heads, rows, padded_rows;
  Output result;
  float factor;
  RowRotation rotation;
};

// Adds the slices of sums in order, times the factor, rounded to the dtype. A warp takes 16 rows,
// which are of one tile; `slices` says how many slices it has.
template <Element kElement, typename Slices>
__device__ inline void finish_rows(const Finish& finish, int64_t batches, int padded_dim,
                                   int head_dim, const Slices& slices) {
  constexpr int kBytes = element_bytes(kElement);
  const int lane = threadIdx.x % kWarp;
  const int64_t groups = ceil_div(finish.rows, kMmaRows);
  for (int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
       index < batches * finish.heads * groups; index += int64_t{gridDim.x} * kThreads / kWarp) {
    const int64_t head = index / groups, row = index % groups * kMmaRows;
    const int64_t last = row + kMmaRows - 1;
    const int64_t count = slices(head / finish.heads, last < finish.rows ? last : finish.rows - 1);
    const float* const sums =
        finish.sums + (head * finish.padded_rows + row) * padded_dim + 4 * lane;
    char* const result = head_data<kBytes>(finish.result, head / finish.heads, head % finish.heads);
#pragma unroll 4
    for (int column = 0; column < head_dim; column += 2 * kMmaColumns) {
      float c[1][2][4] = {};
      for (int64_t slice = 0; slice < count; ++slice) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const float4 x = *reinterpret_cast<const float4*>(
              sums + slice * finish.slice + sum_block(0, column + 8 * block, padded_dim));
          const float parts[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) c[0][block][i] += parts[i];
        }
      }
      put_rows<kElement>(result, finish.result.strides.row * kBytes, row, finish.rows, column,
                         head_dim, finish.factor, c, lane, /*add=*/false, finish.rotation);
    }
  }
}

template <Element kElement>
__global__ void __launch_bounds__(kThreads)
    backward_finish_kernel(const __grid_constant__ BackwardArguments args) {
  wait_for_previous_kernel();
  const Problem& problem = args.pass.problem;
  const BackwardPlan& plan = args.plan;
  const RowRotation rotation = {args.pass.cos, args.pass.sin};
  if (plan.q_slices > 0) {
    const Finish q = {args.q_sums,   plan.q_slice,     problem.heads, problem.n,
                      plan.padded_n, args.pass.grad_q, problem.scale, rotation};
    const auto query_slices = [&](int64_t batch, int64_t row) {
      // Nothing was written for a tile of queries that see no key.
      if (plan.one_pass)
        return int64_t{key_tiles(problem, batch, row / kMmaRows * kMmaRows, row + 1, 1).size() > 0};
      const int64_t chunks = ceil_div(
          query_tile_steps(problem, plan.queries_tile, row / plan.queries_tile.queries, batch),
          plan.queries.chunk_steps);
      return chunks < plan.q_slices ? chunks : plan.q_slices;
    };
    finish_rows<kElement>(q, problem.batches, plan.padded_dim, problem.head_dim, query_slices);
  }
  if (plan.k_slices == 0) return;
  const auto key_slices = [&](int64_t batch, int64_t row) {
    if (plan.one_pass) return int64_t{1};
    const int64_t chunks =
        ceil_div(key_tile_steps(problem, plan.keys_tile, row / plan.keys_tile.keys, batch),
                 plan.keys.chunk_steps);
    return chunks < plan.k_slices ? chunks : plan.k_slices;
  };
  const Finish k = {args.k_sums,   plan.k_slice,     problem.kv_heads, problem.m,
                    plan.padded_m, args.pass.grad_k, problem.scale,    rotation};
  finish_rows<kElement>(k, problem.batches, plan.padded_dim, problem.head_dim, key_slices);
  const Finish v = {
      args.v_sums, plan.k_slice, problem.kv_heads, problem.m, plan.padded_m, args.pass.grad_v, 1.0f,
      {}};
  finish_rows<kElement>(v, problem.batches, plan.padded_dim, problem.head_dim, key_slices);
}

int64_t blocks_for(int64_t work, int sm_count) {
  // 8 blocks of 256 threads are all that a multiprocessor holds; beyond, threads loop.
  const int64_t blocks = ceil_div(work, kThreads);
  const int64_t most = int64_t{8} * sm_count;
  return blocks < 1 ? 1 : blocks < most ? blocks : most;
}

template <Element kElement>
cudaError_t prepare(const BackwardArguments& args, cudaStream_t stream) {
  const Problem& problem = args.pass.problem;
  const BackwardPlan& plan = args.plan;
  // One pass adds to sums, which stand at the workspace's end; two passes and the first in order
  // store.
  float* const zeros = plan.ordered ? reinterpret_cast<float*>(args.turns) : args.q_sums;
  const int64_t zero_count = (plan.ordered    ? plan.q_sums_at - plan.turns_at
                              : plan.one_pass ? plan.workspace_floats - plan.q_sums_at
                                              : 0) /
                             4;
  const int64_t row_work = problem.batches * problem.heads * plan.padded_n * kRowLanes;
  const int64_t work = row_work > zero_count ? row_work : zero_count;
  backward_prepare_kernel<kElement><<<blocks_for(work, args.plan.sm_count), kThreads, 0, stream>>>(
      args, reinterpret_cast<float4*>(zeros), zero_count);
  return cudaGetLastError();
}

template <Element kElement>
cudaError_t finish(const BackwardArguments& args, cudaStream_t stream) {
  const Problem& problem = args.pass.problem;
  const int64_t rows = args.plan.q_slices > 0 ? problem.heads * problem.n : 0;
  const int64_t key_rows = args.plan.k_slices > 0 ? problem.kv_heads * problem.m : 0;
  const int64_t work =
      ceil_div(problem.batches * (rows > key_rows ? rows : key_rows), kMmaRows) * kWarp;
  return launch_after<backward_finish_kernel<kElement>>(
      dim3(static_cast<unsigned>(blocks_for(work, args.plan.sm_count))), dim3(kThreads), 0, stream,
      args);
}

}  // namespace

cudaError_t launch_backward_prepare(const BackwardArguments& args, cudaStream_t stream) {
  return launch_for(args.pass.problem.element,
                    [&]<Element kElement>() { return prepare<kElement>(args, stream); });
}

cudaError_t launch_backward_finish(const BackwardArguments& args, cudaStream_t stream) {
  return launch_for(args.pass.problem.element,
                    [&]<Element kElement>() { return finish<kElement>(args, stream); });
}

}  // namespace flashstep::attention_cuda
