// Kernels that do nothing but move memory (bandwidth.cu), for the limit that others are held
// against.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep::measure {

// destination[i] = source[i] for `count` groups of 16 bytes; both aligned to 16.
cudaError_t launch_copy(void* destination, const void* source, int64_t count, int multiprocessors,
                        cudaStream_t stream);

// Reads all of `source`. `sink` (16 bytes) is in truth never written: it is there so that the
// compiler cannot leave out the reading.
cudaError_t launch_read(const void* source, void* sink, int64_t count, int multiprocessors,
                        cudaStream_t stream);

}  // namespace flashstep::measure
