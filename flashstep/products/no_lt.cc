#include "flashstep/base/error.h"
#include "flashstep/products/lt.h"

namespace flashstep::internal {

bool lt_takes(const at::Tensor&) { return false; }

void lt_product(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  throw MachineError("[product] expected a build with CUDA, got one without");
}

}  // namespace flashstep::internal
