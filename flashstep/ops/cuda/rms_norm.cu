// Bound by memory. A row lies in the registers of one warp (up to 2,048 elements) or of one block,
// so that it is read once; the weight and its gradient's sums stay in L1 and registers. Other
// widths and addresses go element by element.
#include <atomic>
#include <type_traits>

#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kSteps = 8;           // vectors of a row that a thread holds
constexpr int kRowsAtOnce = 4;      // of a block whose rows have one warp each
constexpr int kOtherThreads = 256;  // of a block that goes element by element
// Sums of dweight, one a block: two blocks a multiprocessor of an H100, which keeps enough loads in
// flight. On other devices as well: the sums' order, and with it every bit, is the same everywhere.
constexpr int64_t kMostPartials = 264;

constexpr int threads_of(int warps) { return kWarpLanes * (warps == 1 ? kRowsAtOnce : warps); }

template <typename X, typename Y, int kWarps>
__global__ void __launch_bounds__(threads_of(kWarps))
    forward_kernel(const __grid_constant__ RmsNormForward a) {
  constexpr int kLanes = kWarps * kWarpLanes;
  __shared__ float shared[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  if (row >= a.rows) return;
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
  }
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kOtherThreads)
    forward_elements_kernel(const __grid_constant__ RmsNormForward a) {
  __shared__ float shared[kOtherThreads / kWarpLanes];
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
  for (int64_t i = threadIdx.x; i < a.width; i += kOtherThreads)
    y[i] = static_cast<Y>(a.weight[i] * (static_cast<float>(x[i]) * rstd));
}

// Where a thread keeps its vectors of the rows that are on their way: x, dy and, with a residual,
// that of kStages rows, in shared memory that no other thread reads.
template <typename X, typename Y>
struct Stage {
  X *x, *residual;
  Y* dy;
};
template <typename X, typename Y>
__host__ __device__ int64_t stage_bytes(int64_t width, bool has_residual) {
  return width * static_cast<int64_t>(sizeof(X) * (has_residual ? 2 : 1) + sizeof(Y));
}
template <typename X, typename Y>
__device__ Stage<X, Y> stage_at(char* memory, int64_t width) {
  X* x = reinterpret_cast<X*>(memory);
  Y* dy = reinterpret_cast<Y*>(x + width);
  return {x, reinterpret_cast<X*>(dy + width), dy};
}

// The block's rows one after the other, the next one on its way while one is computed; its sums of
// dweight stay in registers until the end.
template <typename X, typename Y, int kWarps>
__global__ void __launch_bounds__(threads_of(kWarps))
    backward_kernel(const __grid_constant__ RmsNormBackward a, int stages) {
  constexpr int kLanes = kWarps * kWarpLanes;
  constexpr int kGroups = threads_of(kWarps) / kLanes;  // rows at once
  __shared__ float shared[2][kWarps];
  extern __shared__ __align__(kAlignmentBytes) char memory[];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int vectors = static_cast<int>(a.width / kVector);
  const bool has_residual = a.residual != nullptr;
  const int64_t bytes = stage_bytes<X, Y>(a.width, has_residual);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGroups + group;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kGroups;

  const auto stage_of = [&](int64_t turn) {
    return stage_at<X, Y>(memory + (group * stages + turn % stages) * bytes, a.width);
  };
  const auto fetch = [&](int64_t turn) {
    const int64_t row = first + turn * stride;
    if (row < a.rows) {
      const Stage<X, Y> stage = stage_of(turn);
      const X* x = static_cast<const X*>(a.x) + row * a.width;
      const Y* dy = static_cast<const Y*>(a.dy) + row * a.width;
      const X* residual = static_cast<const X*>(a.residual) + row * a.width;
      for (int v = lane; v < vectors; v += kLanes) {
        copy_async(stage.x + v * kVector, x + v * kVector);
        copy_async(stage.dy + v * kVector, dy + v * kVector);
        if (has_residual) copy_async(stage.residual + v * kVector, residual + v * kVector);
      }
    }
    commit_copies();
  };

  Y* rounded_dx = static_cast<Y*>(a.rounded_dx);
  float dweight[kSteps][kVector] = {};
  for (int turn = 0; turn + 1 < stages; ++turn) fetch(turn);
  for (int64_t turn = 0; first + turn * stride < a.rows; ++turn) {
    fetch(turn + stages - 1);
    stages == 1 ? wait_for_copies<0>() : wait_for_copies<1>();
    const int64_t row = first + turn * stride;
    const Stage<X, Y> stage = stage_of(turn);
    const float rstd = a.rstd[row];
    float products = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int v = lane + step * kLanes;
      if (v >= vectors) break;
      float xs[kVector], gradients[kVector], weight[kVector];
      read(stage.x + v * kVector, xs);
      read(stage.dy + v * kVector, gradients);
      read(a.weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float xhat = xs[i] * rstd;
        products = fmaf(gradients[i] * weight[i], xhat, products);
        dweight[step][i] = fmaf(gradients[i], xhat, dweight[step][i]);
      }
    }
    // Of two buffers one is written while slower warps still read the other.
    const float mean = block_sum<kWarps>(products, shared[turn % 2]) / static_cast<float>(a.width);
    X* dx = static_cast<X*>(a.dx) + row * a.width;
    for (int v = lane; v < vectors; v += kLanes) {
      float xs[kVector], gradients[kVector], weight[kVector];
      read(stage.x + v * kVector, xs);
      read(stage.dy + v * kVector, gradients);
      read(a.weight + v * kVector, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        gradients[i] = rstd * (gradients[i] * weight[i] - xs[i] * rstd * mean);
      if (has_residual) {
        read(stage.residual + v * kVector, xs);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gradients[i] += xs[i];
      }
      write(dx + v * kVector, gradients);
      if (rounded_dx != nullptr) write(rounded_dx + row * a.width + v * kVector, gradients);
    }
  }

  // Groups add up in their order; the stages are free now.
  __syncthreads();
  float* sums = reinterpret_cast<float*>(memory);
  float* partial = a.partials + static_cast<int64_t>(blockIdx.x) * a.width;
  for (int turn = 0; turn < kGroups; ++turn) {
    if (turn > 0) __syncthreads();
    if (group != turn) continue;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int v = lane + step * kLanes;
      if (v >= vectors) break;
      float total[kVector];
      if (turn > 0) read(sums + v * kVector, total);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        total[i] = turn > 0 ? total[i] + dweight[step][i] : dweight[step][i];
      write((turn + 1 < kGroups ? sums : partial) + v * kVector, total);
    }
  }
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kOtherThreads)
    backward_elements_kernel(const __grid_constant__ RmsNormBackward a) {
  __shared__ float shared[2][kOtherThreads / kWarpLanes];
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
    }
  }
}

// dweight[i] = sum of partials[.][i]: 32 columns a block, whose warps add every eighth partial.
constexpr int kSumWarps = 8;
__global__ void __launch_bounds__(kSumWarps* kWarpLanes)
    sum_partials_kernel(const float* partials, int64_t count, int64_t width, float* dweight) {
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

// Lets kKernel have as much dynamic shared memory as the device grants, which becomes `most`: asked
// once a device.
template <auto kKernel>
cudaError_t allow_most_shared(int& most) {
  constexpr int kDevices = 64;   // that are remembered
  constexpr int kStatic = 1024;  // more than what the kernel has besides
  static std::atomic<int> known[kDevices];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  most = device < kDevices ? known[device].load(std::memory_order_acquire) : 0;
  if (most > 0) return cudaSuccess;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  most -= kStatic;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  if (error == cudaSuccess && device < kDevices)
    known[device].store(most, std::memory_order_release);
  return error;
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
      forward_elements_kernel<X, Y><<<static_cast<unsigned>(a.rows), kOtherThreads, 0, stream>>>(a);
    } else {
      with_warps(warps, [&](auto count) {
        constexpr int kWarps = decltype(count)::value;
        const int64_t blocks = divide_up(a.rows, kWarps == 1 ? kRowsAtOnce : 1);
        forward_kernel<X, Y, kWarps>
            <<<static_cast<unsigned>(blocks), threads_of(kWarps), 0, stream>>>(a);
      });
    }
    return cudaGetLastError();
  });
}

int64_t rms_norm_partials(int64_t rows) {
  const int64_t blocks = divide_up(rows, kRowsAtOnce);
  return blocks < kMostPartials ? blocks : kMostPartials;
}

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.width == 0) {
    return a.width == 0 ? cudaSuccess
                        : cudaMemsetAsync(a.dweight, 0, sizeof(float) * a.width, stream);
  }
  const bool aligned = is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.dx) &&
                       is_aligned(a.weight) && is_aligned(a.residual) && is_aligned(a.partials) &&
                       is_aligned(a.rounded_dx);
  const int warps = aligned ? warps_for(a.width) : 0;
  const auto blocks = static_cast<unsigned>(rms_norm_partials(a.rows));
  return with_types(a.x_type, a.y_type, [&](auto x_type, auto y_type) {
    using X = decltype(x_type);
    using Y = decltype(y_type);
    cudaError_t error = cudaSuccess;
    if (warps == 0) {
      backward_elements_kernel<X, Y><<<blocks, kOtherThreads, 0, stream>>>(a);
    } else {
      with_warps(warps, [&](auto count) {
        constexpr int kWarps = decltype(count)::value;
        constexpr int kGroups = threads_of(kWarps) / (kWarps * kWarpLanes);
        const int64_t stage = kGroups * stage_bytes<X, Y>(a.width, a.residual != nullptr);
        int most = 0;
        error = allow_most_shared<backward_kernel<X, Y, kWarps>>(most);
        if (error != cudaSuccess) return;
        if (stage > most) {
          backward_elements_kernel<X, Y><<<blocks, kOtherThreads, 0, stream>>>(a);
          return;
        }
        const int stages = 2 * stage <= most ? 2 : 1;
        backward_kernel<X, Y, kWarps>
            <<<blocks, threads_of(kWarps), static_cast<size_t>(stages * stage), stream>>>(a,
                                                                                          stages);
      });
    }
    if (error != cudaSuccess) return error;
    const int64_t columns = divide_up(a.width, kWarpLanes);
    sum_partials_kernel<<<static_cast<unsigned>(columns), kSumWarps * kWarpLanes, 0, stream>>>(
        a.partials, blocks, a.width, a.dweight);
    return cudaGetLastError();
  });
}

}  // namespace flashstep::ops_cuda
