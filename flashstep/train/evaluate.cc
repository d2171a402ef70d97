#include "flashstep/train/evaluate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/ops.h"

namespace flashstep {
namespace {

using torch::Tensor;

// Tokens [begin, begin + rows * length] as (inputs, targets), each (rows, length).
std::pair<Tensor, Tensor> windows(const TokenFile& tokens, uint64_t begin, int64_t rows,
                                  int64_t length, torch::Device device) {
  const Tensor flat = at::empty({rows * length + 1}, at::kLong);
  tokens.read(begin, std::span<int64_t>(flat.data_ptr<int64_t>(), flat.numel()));
  const Tensor there = flat.to(device);
  return {there.slice(0, 0, rows * length).view({rows, length}),
          there.slice(0, 1).view({rows, length})};
}

}  // namespace

double evaluate_loss(const TokenLoss& loss, const TokenFile& tokens,
                     const EvaluateOptions& options) {
  torch::NoGradGuard no_grad;
  uint64_t size = tokens.size();
  if (options.max_tokens > 0) size = std::min(size, options.max_tokens);
  require(size >= 2, "[evaluate] expected at least 2 tokens in ", tokens.path().string(), ", got ",
          size);
  std::optional<AutocastGuard> autocast;
  if (options.precision != Precision::kFloat32) {
    autocast.emplace(options.device.type(),
                     options.precision == Precision::kBFloat16 ? at::kBFloat16 : at::kHalf);
  }
  const int rank = options.group == nullptr ? 0 : options.group->rank();
  const int world_size = options.group == nullptr ? 1 : options.group->world_size();
  const uint64_t predicted = size - 1;
  std::vector<Tensor> sums;  // over one batch's tokens, () float64; zero where another rank's
  const Tensor nothing = at::zeros({}, at::TensorOptions(options.device).dtype(at::kDouble));
  for (uint64_t begin = 0; begin < predicted;) {
    const int64_t left = static_cast<int64_t>(predicted - begin);
    const int64_t length = std::min(options.context_length, left);
    const int64_t rows = std::clamp<int64_t>(left / length, 1, options.batch_size);
    const bool is_own = static_cast<int>(sums.size() % world_size) == rank;
    sums.push_back(nothing);
    if (is_own) {
      tokens.check_size();
      const auto tokens_here = static_cast<uint64_t>(rows * length) + 1;
      if (options.vocab_size) {
        tokens.check_ids_below(*options.vocab_size, begin, begin + tokens_here);
      }
      const auto [inputs, targets] = windows(tokens, begin, rows, length, options.device);
      sums.back() = loss(inputs, targets).to(at::kDouble) * static_cast<double>(rows * length);
    }
    begin += static_cast<uint64_t>(rows * length);
    if (options.progress) options.progress(begin, predicted);
  }
  const int in_last_round = static_cast<int>(sums.size() % world_size);
  if (options.calls_on_all_ranks && in_last_round != 0 && rank >= in_last_round) {
    const auto [inputs, targets] = windows(tokens, 0, 1, 1, options.device);
    loss(inputs, targets);
  }
  const Tensor here = at::stack(sums).cpu();
  std::vector<double> all(here.const_data_ptr<double>(),
                          here.const_data_ptr<double>() + here.numel());
  // Each is added to zeros only, and then all in the order in which one process adds them.
  if (options.group != nullptr) all = options.group->all_reduce(all, Reduce::kSum);
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(predicted);
}

}  // namespace flashstep
