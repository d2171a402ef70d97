#include "flashstep/parallel/torch_reduction.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"

namespace flashstep {
namespace {

constexpr const char* kAveragingByTorch = "averaging gradients with c10d's Reducer";

// Its buckets have the parameters' dtype, and it asserts that gradients have it too. All ranks
// throw, for they have compared what they were given.
void check_dtypes(const ReducedParameters& parameters, const std::vector<at::ScalarType>& dtypes) {
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const at::ScalarType own = parameters.tensors[i].scalar_type();
    if (dtypes[i] == own) continue;
    throw AgreedError(flashstep::str("[parallel] expected gradients in their parameters' dtype for "
                                     "strategy torch, which takes "
                                     "no others, got ",
                                     c10::toString(dtypes[i]), " announced for ",
                                     parameters.names[i], ", which is ", c10::toString(own),
                                     "; call set_grad_dtype() with the parameter's dtype, or "
                                     "choose another strategy (bucketed)"),
                      parameters.names[i]);
  }
}

}  // namespace

TorchReduction::TorchReduction(ReducedParameters parameters, const Group& group,
                               const ReducerOptions& options)
    : Reduction(std::move(parameters), group, options) {
  require(
      !options.allow_unused && !options.communication_dtype,
      "[parallel] expected strategy torch, which is here to compare with, without allow_unused ",
      "and without communication_dtype");
  const size_t count = parameters_.tensors.size();
  check_dtypes(parameters_, gradient_dtypes_);
  require(count > 0, "[parallel] expected parameters that need gradients for strategy torch");
  const auto bytes = static_cast<int64_t>(options.bucket_megabytes * 1e6);  // MB = 10^6
  // As torch/nn/parallel/distributed.py does it: a small first bucket, so that sending starts
  // early, and the buckets reversed, so that what backward reaches first is first.
  const int64_t first_bytes = std::min<int64_t>(c10d::kDefaultFirstBucketBytes, bytes);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters_.tensors, {static_cast<size_t>(first_bytes), static_cast<size_t>(bytes)});
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < count; ++i) names[i] = parameters_.names[i];
  // gradient_as_bucket_view is off, as it is by default: its views throw in zero_grad(false).
  reducer_ = std::make_unique<c10d::Reducer>(
      parameters_.tensors, buckets, group.shared_process_group(), std::vector<bool>(count, false),
      bytes, /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, names,
      first_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{bytes});
}

void TorchReduction::prepare_for_backward() {
  if (!is_enabled()) return;
  group_.guarded(kAveragingByTorch, [&] {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    reducer_->prepare_for_backward({});
  });
  is_prepared_ = true;
}

void TorchReduction::finish() {
  require(is_enabled(), "[parallel] expected finish_gradient_synchronization() outside of no_sync");
  require(is_prepared_, "[parallel] expected prepare_for_backward() before the backward whose ",
          "gradients strategy torch shall average");
  is_prepared_ = false;
  group_.guarded(kAveragingByTorch, [&] { reducer_->check_finalized(); });
}

std::string TorchReduction::transport() const { return transport_of(parameters_.tensors, group_); }

}  // namespace flashstep
