// What a step of BucketReduction is refused for, and who hears of it.
#include <ATen/ATen.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/parallel/bucket_reduction.h"
#include "flashstep/parallel/collective_error.h"

namespace flashstep {

void BucketReduction::check_gradient(int64_t index) const {
  const at::Tensor& parameter = parameters_.tensors[index];
  const at::Tensor& gradient = parameter.grad();
  const std::string& name = parameters_.names[index];
  require_tensor(name, gradient.layout() == at::kStrided,
                 "[parallel] expected dense gradients, got a sparse one for ", name);
  const auto [bucket, slot] = places_[index];
  const at::Tensor& first = parameters_.tensors[buckets_[bucket].layout().parameters.front()];
  require_tensor(name,
                 gradient.device() == parameter.device() &&
                     (averaging_.in_place || parameter.device() == first.device()),
                 "[parallel] expected the gradient of ", name,
                 " on the device that the parameter had ", "when it was wrapped, got one on ",
                 gradient.device(), "; wrap modules after moving them");
  require_tensor(name, !at::GradMode::is_enabled() || !gradient.requires_grad(),
                 "[parallel] expected backward() without create_graph: the mean of ", name,
                 "'s gradient over the ranks has no graph");
}

// Buckets and messages were made for gradients of the dtype that was announced then.
bool BucketReduction::is_announced(int64_t index) const {
  return parameters_.tensors[index].grad().scalar_type() == gradient_dtypes_[index];
}

// Parameters whose gradient cannot be sent, for it is of another dtype.
std::vector<int64_t> BucketReduction::unannounced() const {
  std::vector<int64_t> result;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const auto [bucket, slot] = places_[i];
    if (!buckets_[bucket].is_filled(slot) && parameters_.tensors[i].grad().defined() &&
        !is_announced(index))
      result.push_back(index);
  }
  return result;
}

std::optional<UserError> BucketReduction::mistake_of(
    const std::vector<int64_t>& unannounced) const {
  if (unannounced.empty()) return std::nullopt;
  const int64_t index = unannounced.front();
  return UserError(
      flashstep::str("[parallel] expected gradients of ", c10::toString(gradient_dtypes_[index]),
                     " for ", names_of(unannounced, parameters_.names),
                     ", as was announced when they were wrapped, but ", "backward gave ",
                     c10::toString(parameters_.tensors[index].grad().scalar_type()), " on rank ",
                     group_.rank(),
                     "; call set_grad_dtype(), and move modules, before wrapping them"),
      parameters_.names[index]);
}

// When nothing was sent yet, in the same order: every rank throws the same.
void BucketReduction::compare_plans() const {
  ReducedParameters plan;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const std::string place =
        flashstep::str(recording_ ? "first step, " : "", averaging_.scatter ? "divided, " : "",
                       "bucket ", b + 1, " of ", buckets_.size(), ", ");
    for (const int64_t index : buckets_[b].layout().parameters) {
      plan.tensors.push_back(parameters_.tensors[index]);
      plan.names.push_back(place + parameters_.names[index]);
    }
  }
  check_agreement(plan, group_);
}

// What this rank's backward lacked of the first step's; nothing where that may be.
std::optional<UserError> BucketReduction::deviation(const std::vector<int64_t>& missing) const {
  if (came_again_ || recording_ || options_.allow_unused) return came_again_;
  std::string lacking, name;
  if (!missing.empty()) {
    lacking = "none for " + names_of(missing, parameters_.names);
    name = parameters_.names[missing.front()];
  }
  // None at all, where a gradient is, says that it is not of this backward (give_zero_gradients).
  for (size_t i = 0; i < counts_.size() && lacking.empty(); ++i) {
    const Count& count = counts_[i];
    if (count.fired == 0 || count.fired >= count.expected) continue;
    lacking = flashstep::str(count.fired, " of ", count.expected, " pieces of that of ",
                             parameters_.names[i]);
    name = parameters_.names[i];
  }
  if (lacking.empty()) return std::nullopt;
  return UserError(
      flashstep::str(
          "[parallel] expected gradients as in the first step, but backward gave ", lacking,
          " on rank ", group_.rank(),
          " (allow_unused takes such steps; record_again() after a change of what backward does)"),
      name);
}

// What hosts do in a step, no replay does. Before anything is counted or sent: what was captured by
// then is nothing's, and steps outside go on.
void BucketReduction::check_capture(const at::Device& device) const {
  const char* const expected = recording_       ? "after a step as any, which counts gradients"
                               : options_.debug ? "without debug"
                               : options_.allow_unused ? "without allow_unused"
                               : host_waits_           ? "whose gradients do not go by Gloo"
                                                       : nullptr;
  if (expected == nullptr || !is_being_captured(device)) return;
  throw UserError(flashstep::str("[parallel] expected a CUDA graph of a step ", expected));
}

// What ranks compare before anything is sent.
void BucketReduction::compare_first(const std::optional<UserError>& mistake,
                                    const std::vector<int64_t>& missing) {
  if (!recording_ && !options_.debug) return;
  try {
    if (options_.debug) compare_plans();
    const std::optional<UserError> first = CollectiveError(mistake, group_).first();
    if (first) throw AgreedError(*first);
    if (!options_.allow_unused) check_agreement(missing, parameters_, group_);
  } catch (const AgreedError&) {
    forget_counts();  // nothing was sent: what is missing may be given, or a step begun anew
    holds_own_gradients_ = true;
    throw;
  }
}

}  // namespace flashstep
