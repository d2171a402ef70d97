// The mean loss of a language model over held-out tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <torch/types.h>

#include "flashstep/base/progress.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/loop.h"

namespace flashstep {

// ids and targets (B, T) int64 to the mean of their losses, ().
using TokenLoss =
    std::function<torch::Tensor(const torch::Tensor& ids, const torch::Tensor& targets)>;

struct EvaluateOptions {
  int64_t batch_size = 16, context_length = 256;
  uint64_t max_tokens = 0;                 // only the first so many of the file; 0: all
  std::optional<int64_t> vocab_size = {};  // when given, every id that is read must be below it
  torch::Device device = torch::kCPU;
  Precision precision = Precision::kFloat32;
  ProgressFunction progress = {};  // tokens
  // The ranks share the batches, and all of them call evaluate_loss and get the same: that of one
  // process, bit for bit where the ranks compute a batch alike. Null: a single process.
  const Group* group = nullptr;
  // `loss` is called on all ranks equally often (sharded parameters).
  bool calls_on_all_ranks = false;
};

// The mean loss per token (of cross-entropy: in nats), accumulated in float64, over all tokens but
// the first: the file is cut into windows that follow each other, the last one short, so that every
// token is predicted once. UserError if there are fewer than 2 tokens, or an id is not below the
// vocabulary.
double evaluate_loss(const TokenLoss& loss, const TokenFile& tokens,
                     const EvaluateOptions& options);

}  // namespace flashstep
