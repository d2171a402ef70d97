// Which tokens a batch consists of, as a pure function of (seed, step, micro-step, rank, row):
// nothing is remembered, so resuming at any step costs nothing and ranks never need to agree.
//
// Rows are numbered over the whole run: row r of rank k in micro-step m of step s is number
//   ((s * micro_steps + m) * world_size + k) * batch_size + r,
// so that 4 ranks of batch b, 4 micro-steps of batch b and one rank of batch 4 b read the same.
#pragma once

#include <cstdint>
#include <string>

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
  // size >= 1. (seed, stream) names the permutation.
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
  // step >= 0, 0 <= micro_step < micro_steps, 0 <= row < batch_size.
  uint64_t start(int64_t step, int64_t micro_step, int64_t row) const;

  // Windows in an epoch (kEpoch, kSequential); for kRandom, the places where a row may start.
  uint64_t windows() const { return windows_; }
  const BatchOptions& options() const { return options_; }

 private:
  BatchOptions options_;
  uint64_t tokens_, windows_;
};

}  // namespace flashstep
