#include "flashstep/parallel/reduction.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"

namespace flashstep {

std::string line_of(const at::Tensor& tensor, const std::string& name) {
  const at::ScalarType dtype = tensor.scalar_type(), of_gradient = gradient_dtype(tensor);
  return flashstep::str(
      name, " of shape ", tensor.sizes(), ", strides ", tensor.strides(), ", ",
      c10::toString(dtype),
      of_gradient == dtype ? "" : flashstep::str(" with gradients of ", c10::toString(of_gradient)),
      " on ", c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
      tensor.requires_grad() ? "" : ", frozen");
}

namespace {

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

std::vector<std::string> describe(const ReducerOptions& options) {
  const auto& flat = options.flat_buckets;
  const auto& dtype = options.communication_dtype;
  return {flashstep::str("strategy ", strategy_name(options.strategy)),
          flashstep::str("bucket_megabytes ", options.bucket_megabytes),
          "reorder " + yes_or_no(options.reorder),
          "allow_unused " + yes_or_no(options.allow_unused),
          "flat_buckets " + (flat ? yes_or_no(*flat) : "not given"),
          "peer_copies " + yes_or_no(options.peer_copies),
          "gradient_as_bucket_view " + yes_or_no(options.gradient_as_bucket_view),
          flashstep::str("communication_dtype ", dtype ? c10::toString(*dtype) : "not given"),
          "debug " + yes_or_no(options.debug)};
}

}  // namespace

void check_agreement(const ReducerOptions& options, const Group& group) {
  require_agreement(describe(options), group, "[parallel] expected the same options");
}

void check_agreement(const ReducedParameters& parameters, const Group& group) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    lines.push_back(line_of(parameters.tensors[i], parameters.names[i]));
  }
  const auto difference = first_difference(lines, group);
  if (!difference) return;
  const auto or_none = [](const std::string& line) {
    return line.empty() ? "no more parameters" : line;
  };
  throw AgreedError(
      flashstep::str("[parallel] expected the same parameters on every rank, but number ",
                     difference->line, " is ", or_none(difference->first), " on rank 0 and ",
                     or_none(difference->other), " on rank ", difference->rank),
      difference->line < parameters.names.size() ? parameters.names[difference->line] : "");
}

bool Reduction::holds_local_gradients() const {
  return holds_own_gradients_ && group_.world_size() > 1 &&
         std::ranges::any_of(parameters_.tensors,
                             [](const at::Tensor& tensor) { return tensor.grad().defined(); });
}

std::string names_of(const std::vector<int64_t>& indices, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;  // one sentence, not a page
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(indices.size(), kMost); ++i) named.push_back(names[indices[i]]);
  const size_t rest = indices.size() - named.size();
  return join(named) + (rest > 0 ? flashstep::str(" and ", rest, " more") : "");
}

void check_agreement(const std::vector<int64_t>& missing, const ReducedParameters& parameters,
                     const Group& group) {
  std::vector<int64_t> is_missing(parameters.tensors.size(), 0);
  for (const int64_t index : missing) is_missing[index] = 1;
  const auto on_ranks = group.all_reduce(is_missing, Reduce::kSum);
  std::vector<int64_t> nowhere, somewhere;
  for (size_t i = 0; i < on_ranks.size(); ++i) {
    if (on_ranks[i] == group.world_size()) {
      nowhere.push_back(static_cast<int64_t>(i));
    } else if (on_ranks[i] > 0) {
      somewhere.push_back(static_cast<int64_t>(i));
    }
  }
  const auto& names = parameters.names;
  const std::string advice = ": give only parameters that the loss depends on, or set allow_unused";
  const std::string expected = "[parallel] expected a gradient for every parameter";
  if (!nowhere.empty()) {
    throw AgreedError(
        flashstep::str(expected, ", but backward gave none for ", names_of(nowhere, names), advice),
        names[nowhere.front()]);
  }
  if (!somewhere.empty()) {
    throw AgreedError(
        flashstep::str(expected, " on every rank, but backward gave none on some ranks ", "for ",
                       names_of(somewhere, names), advice),
        names[somewhere.front()]);
  }
}

}  // namespace flashstep
