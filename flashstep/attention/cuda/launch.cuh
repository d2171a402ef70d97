// Launches that need more words than <<<>>> takes.
#pragma once

#include <cuda_runtime.h>

namespace flashstep::attention_cuda {

// With more dynamic shared memory than a launch grants unasked (48 KiB).
// The limit is a property of the kernel on the current device; setting it again costs < 1 us.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int shared_bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

// The same for a kernel that calls wait_for_previous_kernel: from sm_90 its blocks come to their
// multiprocessors while the kernel before still runs, which hides a launch's 1-2 us.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), dim3 grid, dim3 block, int shared_bytes,
                         cudaStream_t stream, const Arguments&... arguments) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
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
  config.numAttrs = attributes.ptxVersion >= 90 ? 1 : 0;  // older code has no wait in it
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace flashstep::attention_cuda
