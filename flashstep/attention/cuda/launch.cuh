// Launches that need more words than <<<>>> takes.
#pragma once

#include <atomic>
#include <cuda_runtime.h>

namespace flashstep::attention_cuda {

// What a kernel needs to be told or asked once on every device: more dynamic shared memory than a
// launch grants unasked (48 KiB), and the version of its PTX.
template <auto kKernel>
cudaError_t prepare_kernel(int shared_bytes, int& ptx_version) {
  constexpr int kDevices = 64;                     // that are remembered
  static std::atomic<int> ptx_versions[kDevices];  // 0: not prepared
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device < kDevices) ptx_version = ptx_versions[device].load(std::memory_order_acquire);
  if (device < kDevices && ptx_version != 0) return cudaSuccess;
  // Several threads may come here at once: all do and store the same.
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, kKernel);
  if (error == cudaSuccess)
    error =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  ptx_version = attributes.ptxVersion;
  if (device < kDevices) ptx_versions[device].store(ptx_version, std::memory_order_release);
  return cudaSuccess;
}

// shared_bytes is the same for all launches of a kernel.
template <auto kKernel, typename... Arguments>
cudaError_t launch(dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  int ptx_version = 0;
  const cudaError_t error = prepare_kernel<kKernel>(shared_bytes, ptx_version);
  if (error != cudaSuccess) return error;
  kKernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

// The same for a kernel that calls wait_for_previous_kernel: from sm_90 its blocks come to their
// multiprocessors while the kernel before still runs, which hides a launch's 1-2 us.
template <auto kKernel, typename... Arguments>
cudaError_t launch_after(dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream,
                         const Arguments&... arguments) {
  int ptx_version = 0;
  const cudaError_t error = prepare_kernel<kKernel>(shared_bytes, ptx_version);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = ptx_version >= 90 ? 1 : 0;  // older code has no wait in it
  return cudaLaunchKernelEx(&config, kKernel, arguments...);
}

}  // namespace flashstep::attention_cuda
