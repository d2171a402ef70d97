#include "flashstep/attention/cuda/tensor_map.h"

namespace flashstep::attention_cuda {
namespace {

// By the runtime, so that nothing links the driver's library.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
  }();
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

}  // namespace

cudaError_t map_rows(CUtensorMap& map, const attention_kernel::Problem& problem,
                     const attention_kernel::Input& input, int64_t heads, int64_t rows,
                     int box_rows) {
  constexpr int kColumns = 64, kBytes = 2;
  const auto encode = encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(problem.head_dim),
                              static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(problem.batches)};
  const int64_t strides[] = {input.strides.row, input.strides.head, input.strides.batch};
  cuuint64_t stride_bytes[3];
  // That of a single row, head or batch may be anything, and is not used.
  for (int i = 0; i < 3; ++i)
    stride_bytes[i] = sizes[i + 1] == 1 ? 16 : static_cast<cuuint64_t>(strides[i] * kBytes);
  const cuuint32_t box[] = {kColumns, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const auto type = problem.element == attention_kernel::Element::kBfloat16
                        ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result =
      encode(&map, type, 4, const_cast<void*>(input.data), sizes, stride_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace flashstep::attention_cuda
