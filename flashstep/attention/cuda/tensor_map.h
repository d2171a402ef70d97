// Arrays as TMA sees them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

// A (batch, head, row, column) map of a 16-bit array, read in boxes of `box_rows` rows (256 at
// most) and 64 columns, swizzled by 128 bytes; beyond the array are zeros. Pointer and strides are
// multiples of 16 bytes.
cudaError_t map_rows(CUtensorMap& map, const attention_kernel::Problem& problem,
                     const attention_kernel::Input& input, int64_t heads, int64_t rows,
                     int box_rows);

}  // namespace flashstep::attention_cuda
