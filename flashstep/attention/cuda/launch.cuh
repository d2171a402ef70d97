// Launching a kernel that needs more dynamic shared memory than a launch grants unasked (48 KiB).
#pragma once

#include <cuda_runtime.h>

namespace flashstep::attention_cuda {

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

}  // namespace flashstep::attention_cuda
