// Batches of a token file as tensors, and which tokens they consist of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "flashstep/detail/token_file.h"

namespace flashstep {

enum class Order {
  kRandom,      // each row starts at a token drawn uniformly, with replacement
  kEpoch,       // each window of the corpus once per epoch, shuffled anew, at a new offset
  kSequential,  // each window once, in the order of the file, then again
};

// "random", "epoch", "sequential"; UserError for any other name.
Order order_by_name(const std::string& name);

struct BatchOptions {
  int64_t batch_size = 1;      // rows that one rank reads per micro-step
  int64_t context_length = 1;  // inputs of a row; its targets are the same tokens one further
  uint64_t seed = 0;
  Order order = Order::kRandom;
  int64_t micro_steps = 1;  // batches that one rank reads per step (gradient accumulation)
  int64_t rank = 0, world_size = 1;
};

// A seeded permutation of [0, size) computed point by point: a Feistel network over the smallest
// rectangle a x b that holds the numbers, walked along its cycle until it comes back into them
// (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, methods 2 and 3).
class Permutation {
 public:
  // 1 <= size <= 2^63, else UserError. (seed, stream) names the permutation.
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t once(uint64_t value) const;

  uint64_t size_, rows_, columns_, seed_, stream_;
};

class BatchOrder {
 public:
  // UserError unless a window of context_length + 1 tokens fits and every option makes sense;
  // `name` stands in the message for the corpus.
  BatchOrder(uint64_t tokens, const BatchOptions& options, const std::string& name);

  // First token of row `row` of this rank's batch; its window is context_length + 1 tokens long.
  // step >= 0, 0 <= micro_step < micro_steps, else UserError; 0 <= row < batch_size.
  uint64_t start(int64_t step, int64_t micro_step, int64_t row) const;

  // Windows in an epoch (kEpoch, kSequential); for kRandom, the places where a row may start.
  uint64_t windows() const { return windows_; }
  const BatchOptions& options() const { return options_; }

 private:
  BatchOptions options_;
  uint64_t tokens_, windows_;
};

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
