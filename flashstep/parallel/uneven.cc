#include <ATen/ATen.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {

BatchShare share_of_batch(int64_t own_rows, const Group& group) {
  require(own_rows >= 0, "[parallel] expected a batch of at least 0 rows, got ", own_rows);
  const int64_t rows = group.all_reduce(own_rows, Reduce::kSum);
  if (rows == 0) return {};
  return {rows, static_cast<double>(own_rows * group.world_size()) / static_cast<double>(rows)};
}

void give_zero_gradients(GradientReducer& reducer) {
  require(reducer.options().strategy != Strategy::kTorch,
          "[parallel] expected a batch on every rank for strategy torch, got a rank without one");
  if (reducer.options().allow_unused) return;
  for (const at::Tensor& parameter : reducer.reduced_parameters()) {
    if (parameter.grad().defined()) continue;
    const auto options = at::TensorOptions(parameter.device()).dtype(gradient_dtype(parameter));
    parameter.mutable_grad() =
        at::empty_strided(parameter.sizes(), gradient_strides(parameter), options).zero_();
  }
}

}  // namespace flashstep
