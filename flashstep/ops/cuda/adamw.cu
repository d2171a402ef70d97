// Bound by memory: gradient, parameter and both moments are read once; parameter, moments and copy
// written once. Arithmetic is that of PyTorch's fused kernel (ATen/native/cuda/fused_adam_utils.cuh
// of 2.11, in float32), operation by operation and with every rounding by name, so that float32
// gradients give its bits.
#include "flashstep/ops/cuda/adamw.h"
#include "flashstep/ops/cuda/tensor_table.cuh"

namespace flashstep::multi_tensor {
namespace {

constexpr int kThreads = 128;
// 96 registers a thread, without spills; 70 KB on their way to a multiprocessor, where an H200's
// bandwidth times latency asks for 30.
constexpr int kBlocksPerProcessor = 5;
// Elements in an access: 16 bytes of float32, 8 of 16-bit types, so that neighbouring threads'
// accesses are neighbours in memory for all of them.
constexpr int kWidth = 4;
constexpr int kUnroll = 2;  // accesses that a thread begins before it computes: 112 bytes
// Elements a block: 230 KB of traffic, 100 times its start's latency; and a model of 100 M
// parameters has 10 blocks for each place on an H200.
constexpr int64_t kChunk = 8'192;
static_assert(kChunk % (kThreads * kWidth * kUnroll) == 0);

// What all elements of a tensor share.
struct Update {
  float step;
  float factor;     // of gradients
  float decay;      // learning rate * weight_decay
  float step_size;  // learning rate / (1 - beta1^step)
  float root;       // sqrt(1 - beta2^step)
};

__device__ Update update_of(const AdamWArguments& args, float step) {
  Update update;
  update.step = step;
  update.factor = clip_factor(args.norm, args.max_norm);
  update.decay = __fmul_rn(*args.learning_rate, args.weight_decay);
  update.step_size = __fdiv_rn(*args.learning_rate, 1 - powf(args.beta1, step));
  update.root = __fsqrt_rn(1 - powf(args.beta2, step));
  return update;
}

__device__ void update_element(const AdamWArguments& args, const Update& update, float gradient,
                               float& parameter, float& exp_avg, float& exp_avg_sq) {
  const float g = __fmul_rn(gradient, update.factor);
  if (args.weight_decay != 0) parameter = __fmaf_rn(-update.decay, parameter, parameter);
  exp_avg = __fmaf_rn(args.beta1, exp_avg, __fmaf_rn(-args.beta1, g, g));
  const float square = __fmul_rn(g, g);
  exp_avg_sq = __fmaf_rn(args.beta2, exp_avg_sq, __fmaf_rn(-args.beta2, square, square));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(exp_avg_sq), update.root), args.eps);
  parameter = __fsub_rn(parameter, __fdiv_rn(__fmul_rn(update.step_size, exp_avg), denominator));
}

__device__ void round_parameter(float parameter, uint32_t, float& p) { p = parameter; }
__device__ void round_parameter(float parameter, uint32_t noise, __nv_bfloat16& p) {
  p = rounded_by_chance(parameter, (noise * 0x9e3779b1U) >> 16);
}

// ops/adamw.cc has the same in tensors.
__device__ void round_all(const Update&, float parameter, float exp_avg, float exp_avg_sq, float& p,
                          float& m, float& v) {
  p = parameter;
  m = exp_avg;
  v = exp_avg_sq;
}
template <typename P>
__device__ void round_all(const Update& update, float parameter, float exp_avg, float exp_avg_sq,
                          P& p, __nv_bfloat16& m, __nv_bfloat16& v) {
  const uint32_t bits =
      mixed(rotated(parameter, 0) ^ rotated(exp_avg, 11) ^ rotated(exp_avg_sq, 22), update.step);
  m = rounded_by_chance(exp_avg, bits & 0xffffU);
  v = rounded_by_chance(exp_avg_sq, bits >> 16);
  round_parameter(parameter, bits, p);
}

template <typename P, typename G, typename C, typename M>
struct Memory {
  P* parameter;
  const G* gradient;
  M* exp_avg;
  M* exp_avg_sq;
  C* copy;  // may be null

  __device__ Memory from(int64_t element) const {
    return {parameter + element, gradient + element, exp_avg + element, exp_avg_sq + element,
            copy == nullptr ? nullptr : copy + element};
  }
  // Whether all can be accessed kWidth elements at a time.
  __device__ bool is_aligned() const {
    using multi_tensor::is_aligned;
    constexpr int kMoments = kWidth * sizeof(M);
    return is_aligned(parameter, kWidth * sizeof(P)) && is_aligned(exp_avg, kMoments) &&
           is_aligned(exp_avg_sq, kMoments) && is_aligned(gradient, kWidth * sizeof(G)) &&
           is_aligned(copy, kWidth * sizeof(C));
  }
};

// The first `count` packs of kCount elements each.
template <int kCount, typename P, typename G, typename C, typename M>
__device__ void update_packs(const AdamWArguments& args, const Update& update,
                             const Memory<P, G, C, M>& memory, int count) {
  for (int first = threadIdx.x; first < count; first += kThreads * kUnroll) {
    Pack<G, kCount> gradients[kUnroll];
    Pack<P, kCount> parameters[kUnroll];
    Pack<M, kCount> exp_avgs[kUnroll], exp_avg_sqs[kUnroll];
#pragma unroll
    for (int n = 0; n < kUnroll; ++n) {
      const int i = first + n * kThreads;
      if (i >= count) break;
      gradients[n] = load<kCount>(memory.gradient, i);
      parameters[n] = load<kCount>(memory.parameter, i);
      exp_avgs[n] = load<kCount>(memory.exp_avg, i);
      exp_avg_sqs[n] = load<kCount>(memory.exp_avg_sq, i);
    }
#pragma unroll
    for (int n = 0; n < kUnroll; ++n) {
      const int i = first + n * kThreads;
      if (i >= count) break;
      Pack<C, kCount> copies;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        float parameter = static_cast<float>(parameters[n].elements[k]);
        float exp_avg = static_cast<float>(exp_avgs[n].elements[k]);
        float exp_avg_sq = static_cast<float>(exp_avg_sqs[n].elements[k]);
        update_element(args, update, static_cast<float>(gradients[n].elements[k]), parameter,
                       exp_avg, exp_avg_sq);
        round_all(update, parameter, exp_avg, exp_avg_sq, parameters[n].elements[k],
                  exp_avgs[n].elements[k], exp_avg_sqs[n].elements[k]);
        copies.elements[k] = static_cast<C>(static_cast<float>(parameters[n].elements[k]));
      }
      store<kCount>(memory.parameter, i, parameters[n]);
      store<kCount>(memory.exp_avg, i, exp_avgs[n]);
      store<kCount>(memory.exp_avg_sq, i, exp_avg_sqs[n]);
      if (memory.copy != nullptr) store<kCount>(memory.copy, i, copies);
    }
  }
}

// Chunk number `chunk` of a tensor. Chunks begin behind the elements before the first aligned one,
// which belong to the first chunk.
template <typename P, typename G, typename C, typename M>
__device__ void update_chunk(const AdamWArguments& args, const Update& update,
                             const Memory<P, G, C, M>& tensor, int64_t numel, int64_t chunk) {
  constexpr int kBytes = kWidth * sizeof(P);
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(tensor.parameter) % kBytes);
  const int before = (kBytes - past) % kBytes / static_cast<int>(sizeof(P));
  const int head = static_cast<int>(min(numel, int64_t{before}));
  const int64_t begin = head + chunk * kChunk;
  const int count = static_cast<int>(min(kChunk, numel - begin));
  if (chunk == 0) update_packs<1>(args, update, tensor, head);
  if (count <= 0) return;
  const Memory<P, G, C, M> memory = tensor.from(begin);
  const int packs = memory.is_aligned() ? count / kWidth : 0;
  update_packs<kWidth>(args, update, memory, packs);
  update_packs<1>(args, update, memory.from(packs * kWidth), count - packs * kWidth);
}

template <typename P, typename M>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    adamw_kernel(const __grid_constant__ AdamWArguments args) {
  if (args.skip != nullptr && *args.skip == 1) return;
  const AdamWPiece& piece = piece_of_block(args.pieces, args.count);
  const Update update = update_of(args, *piece.step);
  const int64_t chunk = static_cast<int>(blockIdx.x) - piece.first_block;
  with_type(piece.gradient_element, [&](auto gradient) {
    using G = typename decltype(gradient)::type;
    const auto run = [&]<typename C>(C* copy) {
      const Memory<P, G, C, M> memory{
          static_cast<P*>(piece.parameter), static_cast<const G*>(piece.gradient),
          static_cast<M*>(piece.exp_avg), static_cast<M*>(piece.exp_avg_sq), copy};
      update_chunk(args, update, memory, piece.numel, chunk);
    };
    if (piece.copy_element == Element::kFloat16) {
      run(static_cast<__half*>(piece.copy));
    } else {
      run(static_cast<__nv_bfloat16*>(piece.copy));
    }
  });
}

}  // namespace

cudaError_t launch_adamw(AdamWArguments& arguments, cudaStream_t stream) {
  if (arguments.count == 0) return cudaSuccess;
  int64_t blocks = 0;
  for (int i = 0; i < arguments.count; ++i) {
    arguments.pieces[i].first_block = static_cast<int>(blocks);
    blocks += count_chunks(arguments.pieces[i].numel, kChunk);
  }
  advance_steps_kernel<<<static_cast<unsigned>(arguments.count), 1, 0, stream>>>(arguments);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (blocks == 0) return cudaSuccess;
  const auto count_of_blocks = static_cast<unsigned>(blocks);
  if (arguments.parameter_element == Element::kBFloat16) {
    adamw_kernel<__nv_bfloat16, __nv_bfloat16><<<count_of_blocks, kThreads, 0, stream>>>(arguments);
  } else if (arguments.moment_element == Element::kBFloat16) {
    adamw_kernel<float, __nv_bfloat16><<<count_of_blocks, kThreads, 0, stream>>>(arguments);
  } else {
    adamw_kernel<float, float><<<count_of_blocks, kThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace flashstep::multi_tensor
