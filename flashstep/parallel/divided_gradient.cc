#include "flashstep/parallel/divided_gradient.h"

#include <c10/core/TensorImpl.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

// Every operation asks for a tensor's sizes or copies its metadata before anything else.
class DividedGradient : public c10::TensorImpl {
 public:
  DividedGradient(at::ScalarType dtype, at::Device device)
      : TensorImpl(c10::DispatchKeySet(c10::computeDispatchKey(dtype, at::kStrided, device)),
                   c10::scalarTypeToTypeMeta(dtype), device) {
    set_storage_access_should_throw();
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
  }

  at::IntArrayRef sizes_custom() const override { refuse(); }
  at::IntArrayRef strides_custom() const override { refuse(); }
  int64_t numel_custom() const override { refuse(); }
  int64_t dim_custom() const override { refuse(); }
  int64_t storage_offset_custom() const override { refuse(); }
  c10::SymIntArrayRef sym_sizes_custom() const override { refuse(); }
  c10::SymIntArrayRef sym_strides_custom() const override { refuse(); }
  c10::SymInt sym_numel_custom() const override { refuse(); }
  c10::SymInt sym_storage_offset_custom() const override { refuse(); }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& /*version*/,
                                                         bool /*can_change*/) const override {
    refuse();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& /*version*/,
                                                         bool /*can_change*/) const override {
    refuse();
  }
  const char* tensorimpl_type_name() const override { return "DividedGradient"; }

 private:
  [[noreturn]] static void refuse() {
    throw UserError(
        "[ShardedOptimizer] expected divided gradients (flat shards) to be used by the optimizer "
        "alone, got a call that reads a parameter's .grad, of which this rank has a share: clip by "
        "the optimizer or flashstep's clip_grad_norm, and end the step by step() or zero_grad() of "
        "the optimizer");
  }
};

}  // namespace

at::Tensor divided_gradient(at::ScalarType dtype, at::Device device) {
  return at::Tensor(c10::make_intrusive<DividedGradient>(dtype, device));
}

bool is_divided_gradient(const at::Tensor& gradient) {
  return gradient.defined() &&
         dynamic_cast<const DividedGradient*>(gradient.unsafeGetTensorImpl()) != nullptr;
}

}  // namespace flashstep
