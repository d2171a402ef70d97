// A build without CUDA: no tensor has a kernel, so that nobody calls the rest.
#include "flashstep/error.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/float8.h"

namespace flashstep::internal {
namespace {

[[noreturn]] void not_built() {
  throw MachineError("[ops] expected a build with CUDA, got one without");
}

}  // namespace

using at::Tensor;

bool has_cuda_kernel(const Tensor&) { return false; }

void rms_norm_forward_cuda(const Tensor&, const Tensor&, double, const Tensor&, const Tensor&,
                           const Tensor&) {
  not_built();
}
Tensor rms_norm_backward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  not_built();
}
void rope_cuda(const Tensor&, const Tensor&, const Tensor&, bool, const Tensor&) { not_built(); }
void swiglu_forward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  not_built();
}
void swiglu_backward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&) {
  not_built();
}
void cross_entropy_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&) {
  not_built();
}
void cross_entropy_backward_cuda(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&) {
  not_built();
}
void embedding_backward_cuda(const Tensor&, const Tensor&, const Tensor&, bool) { not_built(); }
Tensor largest_of(const Tensor&) { not_built(); }
Float8Matrix to_float8(const Tensor&, at::ScalarType, Float8Layout, const Tensor&) { not_built(); }
Float8Matrix to_float8_again(const Tensor&, at::ScalarType, Float8Layout, const Tensor&) {
  not_built();
}
SwigluInFloat8 swiglu_backward_in_float8(const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&) {
  not_built();
}
Tensor counted_cuda(const Tensor&) { not_built(); }
Tensor mean_cuda(const Tensor&, const Tensor&) { not_built(); }

}  // namespace flashstep::internal
