// Batches of a token file as tensors. Which rows they hold: batch_order.h.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "flashstep/data/batch_order.h"
#include "flashstep/data/token_file.h"

namespace flashstep {

// B = batch_size, T = context_length.
struct Batch {
  at::Tensor inputs;   // (B, T) int64, on the CPU
  at::Tensor targets;  // (B, T) int64: targets[b][t] is the token after inputs[b][t]
};

// Reads rows of `tokens`, which must outlive it.
class BatchSampler {
 public:
  // UserError when the file has fewer than context_length + 1 tokens, or an option makes no sense.
  // With `vocab_size`, at() looks at every id it reads: an embedding on a GPU would end the process
  // at one beyond the vocabulary, without a word on where it stands.
  BatchSampler(const TokenFile& tokens, const BatchOptions& options,
               std::optional<int64_t> vocab_size = std::nullopt);

  // A pure function of its arguments and the options: the position of a run is its step. With
  // `pin_memory` (needs CUDA) the tensors lie in page-locked memory, so that the caller's
  // .to(device, /*non_blocking=*/true) overlaps with what the device is doing. UserError at an id
  // that is not below the vocabulary's size.
  Batch at(int64_t step, int64_t micro_step = 0, bool pin_memory = false) const;

  const BatchOrder& order() const { return order_; }

 private:
  const TokenFile& tokens_;
  BatchOrder order_;
  std::optional<int64_t> vocab_size_;
};

}  // namespace flashstep
