// Bound by memory: 4 bytes read and 6 written for an element.
#include <algorithm>
#include <cuda_bf16.h>

#include "flashstep/products/cuda/split.h"

namespace flashstep::products_cuda {
namespace {

constexpr int kVector = 8;  // elements a thread takes at once: 16 bytes of bfloat16
constexpr int kAcross = 64, kDown = 4;
constexpr int64_t kMostRowBlocks = 65'535;

// A number that rounds to infinity, or is none, has no low part.
__device__ void split(float x, __nv_bfloat16& high, __nv_bfloat16& low) {
  high = __float2bfloat16_rn(x);
  const float wide = __bfloat162float(high);
  low = __float2bfloat16_rn(isfinite(wide) ? x - wide : 0.0F);
}

template <int kWidth>
struct alignas(kWidth * sizeof(__nv_bfloat16)) Pieces {
  __nv_bfloat16 elements[kWidth];
};

template <int kWidth>
__global__ void __launch_bounds__(kAcross* kDown)
    split_kernel(const __grid_constant__ SplitArguments a) {
  constexpr int kLoad = kWidth == kVector ? 4 : 1;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kAcross + threadIdx.x) * kWidth;
  if (column >= a.columns) return;
  const int64_t rows_at_once = static_cast<int64_t>(gridDim.y) * kDown;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * kDown + threadIdx.y; row < a.rows;
       row += rows_at_once) {
    alignas(16) float x[kWidth];
    const float* from = a.x + row * a.stride + column;
#pragma unroll
    for (int i = 0; i < kWidth; i += kLoad) {
      if constexpr (kLoad == 4) {
        *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(from + i);
      } else {
        x[i] = from[i];
      }
    }
    Pieces<kWidth> high, low;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) split(x[i], high.elements[i], low.elements[i]);
    auto* to = static_cast<__nv_bfloat16*>(a.pieces) + row * a.pieces_stride + column;
    const auto store = [&](int64_t place, const Pieces<kWidth>& pieces) {
      *reinterpret_cast<Pieces<kWidth>*>(to + place * a.step) = pieces;
    };
    store(a.low_first ? 0 : 1, low);
    store(a.low_first ? 1 : 0, high);
    store(2, high);
  }
}

template <int kWidth>
void launch(const SplitArguments& a, cudaStream_t stream) {
  const int64_t across = kAcross * kWidth;
  const dim3 blocks(static_cast<unsigned>((a.columns + across - 1) / across),
                    static_cast<unsigned>(std::min((a.rows + kDown - 1) / kDown, kMostRowBlocks)));
  split_kernel<kWidth><<<blocks, dim3(kAcross, kDown), 0, stream>>>(a);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

cudaError_t split(const SplitArguments& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  const auto whole = [](int64_t elements) { return elements % kVector == 0; };
  const bool vectors = is_aligned(a.x) && is_aligned(a.pieces) && whole(a.columns) &&
                       whole(a.stride) && whole(a.pieces_stride) && whole(a.step);
  vectors ? launch<kVector>(a, stream) : launch<1>(a, stream);
  return cudaGetLastError();
}

}  // namespace flashstep::products_cuda
