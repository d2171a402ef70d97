// Bound by memory. A row lies in the registers of one warp (up to 2,048 elements) or of one block,
// so that it is read once; the weight and its gradient's sums stay in L1 and registers. Other
// widths and addresses go element by element.
#include <type_traits>

#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kSteps = 8;           // vectors of a row that a thread holds
constexpr int kRowsAtOnce = 4;      // of a block whose rows have one warp each
constexpr int kOtherThreads = 256;  // of a block that goes element by element
// Sums of dweight, one a block: eight blocks a multiprocessor of an H100, which keeps enough loads
// in flight; of four rows at least, so that reading the sums again costs little. On other devices
// as well: the sums' order, and with it every bit, is the same everywhere.
constexpr int64_t kMostPartials = 8 * 132;
constexpr int64_t kNarrow = 1024;  // whose blocks have two warps, so that twice as many fit
constexpr int64_t kRowsPerPartial = 4;

constexpr int threads_of(int warps) { return kWarpLanes * (warps == 1 ? kRowsAtOnce : warps); }

// A row of y, by kWarps warps; returns larger() of what a thread wrote.
template <typename X, typename Y, int kWarps>
__device__ uint32_t row_forward(const RmsNormForward& a, int64_t row, int lane) {
  constexpr int kLanes = kWarps * kWarpLanes;
  __shared__ float shared[kWarps];
  const X* x = static_cast<const X*>(a.x) + row * a.width;
  Y* y = static_cast<Y*>(a.y) + row * a.width;
  const int vectors = static_cast<int>(a.width / kVector);

  Packed<X> row_of_x[kSteps];
  float squares = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = lane + step * kLanes;
    if (v < vectors) row_of_x[step] = load(x + v * kVector);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (lane + step * kLanes >= vectors) break;
    float values[kVector];
    unpack(row_of_x[step], values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares = fmaf(values[i], values[i], squares);
  }
  squares = block_sum<kWarps>(squares, shared);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
  if (lane == 0) a.rstd[row] = rstd;
  uint32_t largest = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = lane + step * kLanes;
    if (v >= vectors) break;
    float values[kVector], weight[kVector];
    unpack(row_of_x[step], values);
    read(a.weight + v * kVector, weight);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = weight[i] * (values[i] * rstd);
    write(y + v * kVector, values);
    largest = larger(largest, values);
  }
  return largest;
}

template <typename X, typename Y, int kWarps>
__global__ void __launch_bounds__(threads_of(kWarps))
    rms_norm_forward_kernel(const __grid_constant__ RmsNormForward a) {
  constexpr int kLanes = kWarps * kWarpLanes;
  __shared__ uint32_t shared[threads_of(kWarps) / kWarpLanes];
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  uint32_t largest = 0;
  if (row < a.rows)
    largest = row_forward<X, Y, kWarps>(a, row, static_cast<int>(threadIdx.x) % kLanes);
  if (a.largest != nullptr)
    raise_largest<threads_of(kWarps) / kWarpLanes>(a.largest, largest, shared);
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kOtherThreads)
    rms_norm_forward_elements_kernel(const __grid_constant__ RmsNormForward a) {
  __shared__ float shared[kOtherThreads / kWarpLanes];
  __shared__ uint32_t shared_largest[kOtherThreads / kWarpLanes];
  const int64_t row = blockIdx.x;
  const X* x = static_cast<const X*>(a.x) + row * a.width;
  Y* y = static_cast<Y*>(a.y) + row * a.width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads) {
    const float value = static_cast<float>(x[i]);
    squares = fmaf(value, value, squares);
  }
  squares = block_sum<kOtherThreads / kWarpLanes>(squares, shared);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
  if (threadIdx.x == 0) a.rstd[row] = rstd;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads) {
    const float value = a.weight[i] * (static_cast<float>(x[i]) * rstd);
    y[i] = static_cast<Y>(value);
    largest = larger(largest, {value});
  }
  if (a.largest != nullptr)
    raise_largest<kOtherThreads / kWarpLanes>(a.largest, largest, shared_largest);
}

// A block of kWarps warps takes its rows one after the other; its sums of dweight stay in registers
// until the end. Few vectors a thread: with the sums of whole rows in one warp's registers so few
// warps would fit a multiprocessor that the instructions' latency bounds (measured: half the rate).
template <typename X, typename Y, int kWarps, int kSteps>
__global__ void __launch_bounds__(kWarps* kWarpLanes)
    rms_norm_backward_kernel(const __grid_constant__ RmsNormBackward a) {
  constexpr int kThreads = kWarps * kWarpLanes;
  __shared__ float shared[2][kWarps];
  __shared__ uint32_t shared_largest[kWarps];
  const int vectors = static_cast<int>(a.width / kVector);
  float dweight[kSteps][kVector] = {};
  uint32_t largest = 0;

  int parity = 0;  // one buffer is written while slower warps still read the other
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    const X* x = static_cast<const X*>(a.x) + row * a.width;
    const Y* dy = static_cast<const Y*>(a.dy) + row * a.width;
    const X* residual = static_cast<const X*>(a.residual) + row * a.width;
    const float rstd = a.rstd[row];
    Packed<X> row_of_x[kSteps], row_of_residual[kSteps];
    Packed<Y> row_of_dy[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int v = static_cast<int>(threadIdx.x) + step * kThreads;
      if (v >= vectors) break;
      row_of_x[step] = load(x + v * kVector);
      row_of_dy[step] = load(dy + v * kVector);
      if (a.residual != nullptr) row_of_residual[step] = load(residual + v * kVector);
    }
    float products = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int v = static_cast<int>(threadIdx.x) + step * kThreads;
      if (v >= vectors) break;
      float xs[kVector], gradients[kVector], weight[kVector];
      unpack(row_of_x[step], xs);
      unpack(row_of_dy[step], gradients);
      read(a.weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float xhat = xs[i] * rstd;
        products = fmaf(gradients[i] * weight[i], xhat, products);
        dweight[step][i] = fmaf(gradients[i], xhat, dweight[step][i]);
      }
    }
    const float mean = block_sum<kWarps>(products, shared[parity]) / static_cast<float>(a.width);
    X* dx = static_cast<X*>(a.dx) + row * a.width;
    Y* rounded_dx = static_cast<Y*>(a.rounded_dx) + row * a.width;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int v = static_cast<int>(threadIdx.x) + step * kThreads;
      if (v >= vectors) break;
      float xs[kVector], gradients[kVector], weight[kVector];
      unpack(row_of_x[step], xs);
      unpack(row_of_dy[step], gradients);
      read(a.weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        gradients[i] = rstd * (gradients[i] * weight[i] - xs[i] * rstd * mean);
      if (a.residual != nullptr) {
        unpack(row_of_residual[step], xs);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gradients[i] += xs[i];
      }
      write(dx + v * kVector, gradients);
      if (a.rounded_dx != nullptr) write(rounded_dx + v * kVector, gradients);
      largest = larger(largest, gradients);
    }
  }
  if (a.largest != nullptr) raise_largest<kWarps>(a.largest, largest, shared_largest);

  float* partial = a.partials + static_cast<int64_t>(blockIdx.x) * a.width;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = static_cast<int>(threadIdx.x) + step * kThreads;
    if (v >= vectors) break;
    write(partial + v * kVector, dweight[step]);
  }
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kOtherThreads)
    rms_norm_backward_elements_kernel(const __grid_constant__ RmsNormBackward a) {
  __shared__ float shared[2][kOtherThreads / kWarpLanes];
  __shared__ uint32_t shared_largest[kOtherThreads / kWarpLanes];
  uint32_t largest = 0;
  float* partial = a.partials + static_cast<int64_t>(blockIdx.x) * a.width;
  for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads) partial[i] = 0;
  int parity = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    const X* x = static_cast<const X*>(a.x) + row * a.width;
    const Y* dy = static_cast<const Y*>(a.dy) + row * a.width;
    const X* residual = static_cast<const X*>(a.residual) + row * a.width;
    X* dx = static_cast<X*>(a.dx) + row * a.width;
    const float rstd = a.rstd[row];
    float products = 0;
    for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads) {
      const float xhat = static_cast<float>(x[i]) * rstd, gradient = static_cast<float>(dy[i]);
      products = fmaf(gradient * a.weight[i], xhat, products);
      partial[i] = fmaf(gradient, xhat, partial[i]);
    }
    const float mean = block_sum<kOtherThreads / kWarpLanes>(products, shared[parity]) /
                       static_cast<float>(a.width);
    for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads) {
      const float xhat = static_cast<float>(x[i]) * rstd;
      const float own = rstd * (static_cast<float>(dy[i]) * a.weight[i] - xhat * mean);
      const float whole = a.residual == nullptr ? own : own + static_cast<float>(residual[i]);
      dx[i] = static_cast<X>(whole);
      if (a.rounded_dx != nullptr)
        static_cast<Y*>(a.rounded_dx)[row * a.width + i] = static_cast<Y>(whole);
      largest = larger(largest, {whole});
    }
  }
  if (a.largest != nullptr)
    raise_largest<kOtherThreads / kWarpLanes>(a.largest, largest, shared_largest);
}

// dweight[i] = sum of partials[.][i]: 32 columns a block, whose warps add every 32nd partial.
constexpr int kSumWarps = 32;
__global__ void __launch_bounds__(kSumWarps* kWarpLanes)
    rms_norm_sum_partials_kernel(const float* partials, int64_t count, int64_t width,
                                 float* dweight) {
  __shared__ float shared[kSumWarps][kWarpLanes];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpLanes + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t i = warp; i < count; i += kSumWarps) sum += partials[i * width + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
#pragma unroll
  for (int i = 1; i < kSumWarps; ++i) sum += shared[i][lane];
  dweight[column] = sum;
}

// How many warps hold a row; 0: it goes element by element.
int warps_for(int64_t width) {
  constexpr int64_t kOfAWarp = int64_t{kWarpLanes} * kSteps * kVector;  // 2,048
  if (width % kVector != 0) return 0;
  return width <= kOfAWarp ? 1 : width <= 4 * kOfAWarp ? 4 : width <= 8 * kOfAWarp ? 8 : 0;
}

// Calls work(X(), Y()) for the dtypes that go together.
template <typename Work>
cudaError_t with_types(Element x, Element y, const Work& work) {
  return with_type(y, [&](auto y_type) {
    if (x == y) return work(y_type, y_type);
    if (x != Element::kFloat32) return cudaErrorInvalidValue;
    return work(float(), y_type);
  });
}

template <typename Work>
void with_warps(int warps, const Work& work) {
  if (warps == 1) return work(std::integral_constant<int, 1>());
  if (warps == 4) return work(std::integral_constant<int, 4>());
  work(std::integral_constant<int, 8>());
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.width == 0) return cudaSuccess;
  const bool aligned = is_aligned(a.x) && is_aligned(a.y) && is_aligned(a.weight);
  const int warps = aligned ? warps_for(a.width) : 0;
  return with_types(a.x_type, a.y_type, [&](auto x_type, auto y_type) {
    using X = decltype(x_type);
    using Y = decltype(y_type);
    if (warps == 0) {
      rms_norm_forward_elements_kernel<X, Y>
          <<<static_cast<unsigned>(a.rows), kOtherThreads, 0, stream>>>(a);
    } else {
      with_warps(warps, [&](auto count) {
        constexpr int kWarps = decltype(count)::value;
        const int64_t blocks = divide_up(a.rows, kWarps == 1 ? kRowsAtOnce : 1);
        rms_norm_forward_kernel<X, Y, kWarps>
            <<<static_cast<unsigned>(blocks), threads_of(kWarps), 0, stream>>>(a);
      });
    }
    return cudaGetLastError();
  });
}

int64_t rms_norm_partials(int64_t rows, int64_t width) {
  const int64_t blocks = divide_up(rows, kRowsPerPartial);
  const int64_t most = width <= kNarrow ? 2 * kMostPartials : kMostPartials;
  return blocks < most ? blocks : most;
}

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.width == 0) {
    return a.width == 0 ? cudaSuccess
                        : cudaMemsetAsync(a.dweight, 0, sizeof(float) * a.width, stream);
  }
  const bool aligned = is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.dx) &&
                       is_aligned(a.weight) && is_aligned(a.residual) && is_aligned(a.partials) &&
                       is_aligned(a.rounded_dx) && a.width % kVector == 0;
  const auto blocks = static_cast<unsigned>(rms_norm_partials(a.rows, a.width));
  return with_types(a.x_type, a.y_type, [&](auto x_type, auto y_type) {
    using X = decltype(x_type);
    using Y = decltype(y_type);
    constexpr int64_t kStep = int64_t{kWarpLanes} * kVector;  // of one warp: 256
    if (!aligned || a.width > 64 * kStep) {
      rms_norm_backward_elements_kernel<X, Y><<<blocks, kOtherThreads, 0, stream>>>(a);
    } else if (a.width <= kNarrow) {
      rms_norm_backward_kernel<X, Y, 2, 2><<<blocks, 2 * kWarpLanes, 0, stream>>>(a);
    } else if (a.width <= 8 * kStep) {
      rms_norm_backward_kernel<X, Y, 4, 2><<<blocks, 4 * kWarpLanes, 0, stream>>>(a);
    } else if (a.width <= 32 * kStep) {
      rms_norm_backward_kernel<X, Y, 8, 4><<<blocks, 8 * kWarpLanes, 0, stream>>>(a);
    } else {
      rms_norm_backward_kernel<X, Y, 16, 4><<<blocks, 16 * kWarpLanes, 0, stream>>>(a);
    }
    const int64_t columns = divide_up(a.width, kWarpLanes);
    rms_norm_sum_partials_kernel<<<static_cast<unsigned>(columns), kSumWarps * kWarpLanes, 0,
                                   stream>>>(a.partials, blocks, a.width, a.dweight);
    return cudaGetLastError();
  });
}

}  // namespace flashstep::ops_cuda
