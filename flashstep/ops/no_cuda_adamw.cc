#include "flashstep/ops/multi_tensor_kernels.h"

namespace flashstep::internal {

const MultiTensorKernels kCudaMultiTensor = {
    [](const at::Device&, at::ScalarType) { return false; },
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr};

}  // namespace flashstep::internal
