// Bound by memory: two passes, between which the products lie. The first reads gradient and
// momentum, and writes momentum and direction; the second reads direction and parameter, and writes
// parameter and copy.
#include "flashstep/ops/cuda/muon.h"
#include "flashstep/ops/cuda/tensor_table.cuh"

namespace flashstep::multi_tensor {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;          // elements in an access, as adamw.cu has it
constexpr int64_t kChunk = 8'192;  // elements a block

__device__ void round_to(float x, uint32_t, bool, float& kept) { kept = x; }
__device__ void round_to(float x, uint32_t noise, bool by_chance, __nv_bfloat16& kept) {
  kept = by_chance ? rounded_by_chance(x, noise) : __float2bfloat16_rn(x);
}

// keep * a + (1 - keep) * b. Roundings by name: bits shall not depend on how memory is aligned.
__device__ float mean(float keep, float a, float b) {
  return __fmaf_rn(keep, a, __fmul_rn(1 - keep, b));
}

__device__ uint32_t noise_of(float own, float other, float step) {
  return mixed(__float_as_uint(own) ^ rotated(other, 11), step) & 0xffffU;
}

template <int kCount, typename G, typename M>
__device__ void direct(const MuonArguments& args, float step, const G* gradients, M* momenta,
                       __nv_bfloat16* directions, int64_t packs) {
  const float factor = clip_factor(args.norm, args.max_norm), keep = args.momentum;
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
    const auto gradient = load<kCount>(gradients, i);
    auto momentum = load<kCount>(momenta, i);
    Pack<__nv_bfloat16, kCount> direction;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float g = __fmul_rn(static_cast<float>(gradient.elements[k]), factor);
      const float m = mean(keep, static_cast<float>(momentum.elements[k]), g);
      direction.elements[k] = __float2bfloat16_rn(args.nesterov ? mean(keep, m, g) : m);
      round_to(m, noise_of(m, g, step), args.momentum_by_chance, momentum.elements[k]);
    }
    store<kCount>(momenta, i, momentum);
    store<kCount>(directions, i, direction);
  }
}

template <int kCount, typename P, typename C>
__device__ void update(const MuonArguments& args, float step, P* parameters,
                       const __nv_bfloat16* directions, C* copies, int64_t packs) {
  const float rate = *args.learning_rate;
  const float decay = __fmul_rn(rate, args.weight_decay), size = __fmul_rn(rate, args.size);
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
    const auto direction = load<kCount>(directions, i);
    auto parameter = load<kCount>(parameters, i);
    Pack<C, kCount> copy;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float o = static_cast<float>(direction.elements[k]);
      float p = static_cast<float>(parameter.elements[k]);
      p = __fmaf_rn(-size, o, __fmaf_rn(-decay, p, p));
      round_to(p, noise_of(p, o, step), args.parameter_by_chance, parameter.elements[k]);
      copy.elements[k] = static_cast<C>(static_cast<float>(parameter.elements[k]));
    }
    store<kCount>(parameters, i, parameter);
    if (copies != nullptr) store<kCount>(copies, i, copy);
  }
}

// A block's part of its piece.
struct Part {
  int64_t piece, begin, count;
};
__device__ Part part_of_block(const MuonArguments& args) {
  const int64_t chunks = count_chunks(args.numel, kChunk);
  const int64_t begin = blockIdx.x % chunks * kChunk;
  return {blockIdx.x / chunks, begin, min(kChunk, args.numel - begin)};
}

template <typename M>
__global__ void __launch_bounds__(kThreads)
    muon_directions_kernel(const __grid_constant__ MuonArguments args) {
  if (args.skip != nullptr && *args.skip == 1) return;
  const auto [index, begin, count] = part_of_block(args);
  const MuonPiece& piece = args.pieces[index];
  M* const momenta = static_cast<M*>(piece.momentum) + begin;
  __nv_bfloat16* const directions =
      static_cast<__nv_bfloat16*>(args.directions) + index * args.numel + begin;
  with_type(piece.gradient_element, [&](auto type) {
    using G = typename decltype(type)::type;
    const G* const gradients = static_cast<const G*>(piece.gradient) + begin;
    const bool aligned = is_aligned(gradients, kWidth * sizeof(G)) &&
                         is_aligned(momenta, kWidth * sizeof(M)) &&
                         is_aligned(directions, kWidth * sizeof(__nv_bfloat16));
    const int64_t packs = aligned ? count / kWidth : 0, done = packs * kWidth;
    direct<kWidth>(args, *piece.step, gradients, momenta, directions, packs);
    direct<1>(args, *piece.step, gradients + done, momenta + done, directions + done, count - done);
  });
}

template <typename P>
__global__ void __launch_bounds__(kThreads)
    muon_update_kernel(const __grid_constant__ MuonArguments args) {
  if (args.skip != nullptr && *args.skip == 1) return;
  const auto [index, begin, count] = part_of_block(args);
  const MuonPiece& piece = args.pieces[index];
  P* const parameters = static_cast<P*>(piece.parameter) + begin;
  const __nv_bfloat16* const directions =
      static_cast<const __nv_bfloat16*>(args.directions) + index * args.numel + begin;
  const auto run = [&]<typename C>(C* copy) {
    C* const copies = copy == nullptr ? nullptr : copy + begin;
    const bool aligned = is_aligned(parameters, kWidth * sizeof(P)) &&
                         is_aligned(directions, kWidth * sizeof(__nv_bfloat16)) &&
                         is_aligned(copies, kWidth * sizeof(C));
    const int64_t packs = aligned ? count / kWidth : 0, done = packs * kWidth;
    update<kWidth>(args, *piece.step, parameters, directions, copies, packs);
    update<1>(args, *piece.step, parameters + done, directions + done,
              copies == nullptr ? nullptr : copies + done, count - done);
  };
  if (piece.copy_element == Element::kFloat16) {
    run(static_cast<__half*>(piece.copy));
  } else {
    run(static_cast<__nv_bfloat16*>(piece.copy));
  }
}

constexpr int kTile = 64, kTileRows = 8;

// A block a tile on or above the diagonal.
__global__ void __launch_bounds__(32 * kTileRows)
    mirror_kernel(__nv_bfloat16* matrices, int64_t n) {
  const int64_t row = int64_t{blockIdx.y} * kTile, column = int64_t{blockIdx.x} * kTile;
  if (column < row) return;
  __shared__ __nv_bfloat16 below[kTile][kTile + 2];  // + 2: its columns lie in different banks
  __nv_bfloat16* const own = matrices + blockIdx.z * n * n;
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
    for (int x = static_cast<int>(threadIdx.x); x < kTile; x += 32) {
      if (column + y < n && row + x < n) below[y][x] = own[(column + y) * n + row + x];
    }
  }
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
    for (int x = static_cast<int>(threadIdx.x); x < kTile; x += 32) {
      if (column + x < n && column + x > row + y) own[(row + y) * n + column + x] = below[x][y];
    }
  }
}

unsigned blocks_of(const MuonArguments& arguments) {
  return static_cast<unsigned>(arguments.count * count_chunks(arguments.numel, kChunk));
}

}  // namespace

cudaError_t launch_mirror(void* matrices, int64_t count, int64_t n, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(count_chunks(n, kTile));
  mirror_kernel<<<dim3(tiles, tiles, static_cast<unsigned>(count)), dim3(32, kTileRows), 0,
                  stream>>>(static_cast<__nv_bfloat16*>(matrices), n);
  return cudaGetLastError();
}

cudaError_t launch_muon_directions(const MuonArguments& arguments, cudaStream_t stream) {
  advance_steps_kernel<<<static_cast<unsigned>(arguments.count), 1, 0, stream>>>(arguments);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (arguments.momentum_element == Element::kBFloat16) {
    muon_directions_kernel<__nv_bfloat16><<<blocks_of(arguments), kThreads, 0, stream>>>(arguments);
  } else {
    muon_directions_kernel<float><<<blocks_of(arguments), kThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t launch_muon_update(const MuonArguments& arguments, cudaStream_t stream) {
  if (arguments.parameter_element == Element::kBFloat16) {
    muon_update_kernel<__nv_bfloat16><<<blocks_of(arguments), kThreads, 0, stream>>>(arguments);
  } else {
    muon_update_kernel<float><<<blocks_of(arguments), kThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace flashstep::multi_tensor
