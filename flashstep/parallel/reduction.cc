#include "flashstep/parallel/reduction.h"

#include <algorithm>

#include "flashstep/base/error.h"
#include "flashstep/comm/agreement.h"

namespace flashstep::parallel {
namespace {

// One parameter in one line.
std::string describe(const at::Tensor& tensor, const std::string& name) {
  return flashstep::str(name, " of shape ", tensor.sizes(), ", strides ", tensor.strides(), ", ",
                        c10::toString(tensor.scalar_type()), " on ",
                        c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
                        tensor.requires_grad() ? "" : ", frozen");
}

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
          "persistent_buckets " + yes_or_no(options.persistent_buckets),
          flashstep::str("communication_dtype ", dtype ? c10::toString(*dtype) : "not given"),
          "debug " + yes_or_no(options.debug)};
}

}  // namespace

void check_agreement(const ReducerOptions& options, const comm::Group& group) {
  const auto difference = comm::first_difference(describe(options), group);
  if (!difference) return;
  throw comm::AgreedError(flashstep::str("[parallel] expected the same options on every rank, got ",
                                         difference->first, " on rank 0 and ", difference->other,
                                         " on rank ", difference->rank));
}

void check_agreement(const ReducedParameters& parameters, const comm::Group& group) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    lines.push_back(describe(parameters.tensors[i], parameters.names[i]));
  }
  const auto difference = comm::first_difference(lines, group);
  if (!difference) return;
  const auto or_none = [](const std::string& line) {
    return line.empty() ? "no more parameters" : line;
  };
  throw comm::AgreedError(
      flashstep::str("[parallel] expected the same parameters on every rank, but number ",
                     difference->line, " is ", or_none(difference->first), " on rank 0 and ",
                     or_none(difference->other), " on rank ", difference->rank));
}

std::string names_of(const std::vector<int64_t>& indices, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;  // one sentence, not a page
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(indices.size(), kMost); ++i) named.push_back(names[indices[i]]);
  const size_t rest = indices.size() - named.size();
  return join(named) + (rest > 0 ? flashstep::str(" and ", rest, " more") : "");
}

}  // namespace flashstep::parallel
