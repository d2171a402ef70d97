#include "flashstep/parallel/collective_error.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace flashstep {
namespace {

constexpr const char* kComparing = "comparing the ends of a step";

}  // namespace

CollectiveError::CollectiveError(std::optional<UserError> mistake, const Group& group)
    : mistake_(std::move(mistake)),
      group_(group),
      speaks_(at::full({1}, mistake_ ? 1 : 0, at::kLong)) {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  std::vector<at::Tensor> message = {speaks_};
  work_ = group_.guarded(kComparing,
                         [&] { return group_.process_group().allreduce(message, options); });
}

std::optional<UserError> CollectiveError::first() {
  group_.wait(work_, kComparing);
  if (speaks_.item<int64_t>() == 0) return std::nullopt;
  const std::string own = mistake_ ? str(mistake_->tensor(), '\n', mistake_->what()) : "";
  for (const std::string& text : group_.all_gather(own)) {
    const size_t end = text.find('\n');
    if (!text.empty()) return UserError(text.substr(end + 1), text.substr(0, end));
  }
  return std::nullopt;
}

}  // namespace flashstep
