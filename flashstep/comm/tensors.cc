// Collectives on one tensor, for everyday use; all others: Group::process_group().
#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {
namespace {

c10d::ReduceOp operation(Reduce reduce, bool averages) {
  if (reduce == Reduce::kMin) return c10d::ReduceOp::MIN;
  if (reduce == Reduce::kMax) return c10d::ReduceOp::MAX;
  return reduce == Reduce::kMean && averages ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
}

}  // namespace

void all_reduce(const Group& group, at::Tensor tensor, Reduce reduce, const std::string& what) {
  require(tensor.defined() && tensor.is_contiguous(), "[", what,
          "] expected a contiguous tensor, got ",
          tensor.defined() ? flashstep::str("strides ", tensor.strides()) : "an undefined one");
  require(reduce != Reduce::kMean || at::isFloatingType(tensor.scalar_type()), "[", what,
          "] expected a floating-point tensor for a mean, got ", tensor.scalar_type());
  group.check(what);
  const auto backend =
      group.guarded(what, [&] { return group.process_group().getBackend(tensor.device().type()); });
  const bool averages = backend->getBackendName() == "nccl";
  c10d::AllreduceOptions options;
  options.reduceOp = operation(reduce, averages);
  options.asyncOp = false;  // NCCL: on the current stream, without events between two streams
  const auto run = [&](const at::Tensor& one) {
    std::vector<at::Tensor> tensors = {one};
    const auto work = group.guarded(what, [&] { return backend->allreduce(tensors, options); });
    if (work) group.wait(work, what);
  };
  const at::NoGradGuard no_grad;
  at::Tensor not_a_number;  // c10d's MIN and MAX drop NaN
  if ((reduce == Reduce::kMin || reduce == Reduce::kMax) &&
      at::isFloatingType(tensor.scalar_type()))
    not_a_number = tensor.isnan().to(at::kByte);
  run(tensor);
  if (reduce == Reduce::kMean && !averages) tensor.div_(group.world_size());
  if (not_a_number.defined()) {
    options.reduceOp = c10d::ReduceOp::MAX;
    run(not_a_number);
    tensor.masked_fill_(not_a_number.to(at::kBool), NAN);
  }
  // c10d writes past autograd.
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace flashstep
