#include "flashstep/error.h"
#include "flashstep/products/lt.h"

namespace flashstep::internal {
namespace {

[[noreturn]] void no_cuda() {
  throw MachineError("[product] expected a build with CUDA, got one without");
}

}  // namespace

using at::Tensor;

bool lt_takes(const Tensor&) { return false; }
void lt_product(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double) {
  no_cuda();
}
void split_product(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { no_cuda(); }
bool lt_takes_float8(c10::DeviceIndex) { return false; }
void lt_scaled_product(const ScaledMatrix&, const ScaledMatrix&, const Tensor&, const Tensor&) {
  no_cuda();
}
LtMachine lt_machine() { return {}; }
std::vector<ProductShape> lt_shapes() { return {}; }
int64_t lt_algorithms(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { no_cuda(); }
void lt_product_by(int64_t, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  no_cuda();
}

}  // namespace flashstep::internal
