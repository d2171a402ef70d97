// Bound by memory: every element is read and written once.
#include <type_traits>

#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/swiglu.cuh"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 256;

// Where a thread's elements stand: in the inputs' rows, and in rows that are dense.
struct Place {
  int64_t input, dense;
};
template <int kWidth, typename Index>
__device__ Place place_of(Index index, int64_t width, int64_t stride) {
  const auto parts = static_cast<Index>(width / kWidth);
  const Index row = index / parts;
  const auto column = static_cast<int64_t>(index - row * parts) * kWidth;
  return {static_cast<int64_t>(row) * stride + column, static_cast<int64_t>(index) * kWidth};
}

// A thread's part; returns larger() of what it wrote.
template <typename T, int kWidth, typename Index>
__device__ uint32_t part(const SwigluForward& args, Index index) {
  const Place place = place_of<kWidth>(index, args.width, args.input_stride);
  float a[kWidth], b[kWidth];
  read(static_cast<const T*>(args.a) + place.input, a);
  read(static_cast<const T*>(args.b) + place.input, b);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) a[i] = a[i] * sigmoid<T>(a[i]) * b[i];
  write(static_cast<T*>(args.y) + place.dense, a);
  return larger(0, a);
}

template <typename T, int kWidth, typename Index>
__device__ uint32_t part(const SwigluBackward& args, Index index) {
  const Place place = place_of<kWidth>(index, args.width, args.input_stride);
  float a[kWidth], b[kWidth], dy[kWidth], y[kWidth];
  read(static_cast<const T*>(args.a) + place.input, a);
  read(static_cast<const T*>(args.b) + place.input, b);
  read(static_cast<const T*>(args.dy) + place.dense, dy);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) swiglu_backward_element<T>(dy[i], a[i], b[i], y[i]);
  if (args.da != nullptr) {
    write(static_cast<T*>(args.da) + place.input, a);
    write(static_cast<T*>(args.db) + place.input, b);
  }
  if (args.y != nullptr) write(static_cast<T*>(args.y) + place.dense, y);
  return larger(larger(0, a), b);
}

template <typename T, int kWidth, bool kLargest, typename Arguments, typename Index>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const __grid_constant__ Arguments args, Index count) {
  const Index index = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (kLargest) {
    __shared__ uint32_t shared[kThreads / kWarpLanes];
    const uint32_t largest = index < count ? part<T, kWidth>(args, index) : 0;
    raise_largest<kThreads / kWarpLanes>(args.largest, largest, shared);
  } else {
    if (index < count) part<T, kWidth>(args, index);
  }
}

// Calls work(kWidth, count): a thread's elements, and the threads, in the type that counts them.
template <typename Work>
void with_shape(bool vectors, int64_t rows, int64_t width, const Work& work) {
  const auto with_width = [&](auto elements) {
    const int64_t count = rows * (width / decltype(elements)::value);
    if (count + kThreads <= UINT32_MAX) {
      work(elements, static_cast<uint32_t>(count));
    } else {
      work(elements, count);
    }
  };
  vectors ? with_width(std::integral_constant<int, kVector>())
          : with_width(std::integral_constant<int, 1>());
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>(divide_up(count, kThreads)); }

// Rows that lie behind one another are one row.
template <typename Arguments>
Arguments joined(Arguments a) {
  if (a.rows == 1 || a.input_stride == a.width) {
    a.width *= a.rows;
    a.input_stride = a.width;
    a.rows = 1;
  }
  return a;
}

template <typename Arguments>
bool takes_vectors(const Arguments& a) {
  return a.width % kVector == 0 && a.input_stride % kVector == 0 && is_aligned(a.a) &&
         is_aligned(a.b) && is_aligned(a.y);
}

template <typename Arguments>
cudaError_t launch(const Arguments& args, bool vectors, cudaStream_t stream) {
  return with_type(args.type, [&](auto type) {
    with_shape(vectors, args.rows, args.width, [&](auto elements, auto count) {
      using T = decltype(type);
      constexpr int kWidth = decltype(elements)::value;
      const auto kernel = args.largest == nullptr
                              ? swiglu_kernel<T, kWidth, false, Arguments, decltype(count)>
                              : swiglu_kernel<T, kWidth, true, Arguments, decltype(count)>;
      kernel<<<blocks_for(count), kThreads, 0, stream>>>(args, count);
    });
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t swiglu_forward(const SwigluForward& given, cudaStream_t stream) {
  if (given.rows * given.width == 0) return cudaSuccess;
  const SwigluForward args = joined(given);
  return launch(args, takes_vectors(args), stream);
}

cudaError_t swiglu_backward(const SwigluBackward& given, cudaStream_t stream) {
  if (given.rows * given.width == 0) return cudaSuccess;
  const SwigluBackward args = joined(given);
  const bool vectors =
      takes_vectors(args) && is_aligned(args.dy) && is_aligned(args.da) && is_aligned(args.db);
  return launch(args, vectors, stream);
}

}  // namespace flashstep::ops_cuda
