// Collectives on one tensor, for everyday use; all others: Group::process_group().
#include <vector>

#include <ATen/core/Tensor.h>

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
  std::vector<at::Tensor> tensors = {tensor};
  const auto work = group.guarded(what, [&] { return backend->allreduce(tensors, options); });
  if (work) group.wait(work, what);
  if (reduce == Reduce::kMean && !averages) tensor.div_(group.world_size());
  // c10d writes past autograd.
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace flashstep
