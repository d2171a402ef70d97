#include "flashstep/parallel/shared_sentence.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace flashstep {
namespace {

constexpr const char* kComparing = "comparing the ends of a step";

}  // namespace

SharedSentence::SharedSentence(std::string sentence, const Group& group)
    : sentence_(std::move(sentence)),
      group_(group),
      speaks_(at::full({1}, sentence_.empty() ? 0 : 1, at::kLong)) {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  std::vector<at::Tensor> message = {speaks_};
  work_ = group_.guarded(kComparing,
                         [&] { return group_.process_group().allreduce(message, options); });
}

std::string SharedSentence::first() {
  group_.wait(work_, kComparing);
  if (speaks_.item<int64_t>() == 0) return {};
  for (const std::string& sentence : group_.all_gather(sentence_)) {
    if (!sentence.empty()) return sentence;
  }
  return {};
}

}  // namespace flashstep
