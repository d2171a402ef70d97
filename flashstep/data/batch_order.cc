#include <algorithm>
#include <cmath>

#include "flashstep/base/rng.h"
#include "flashstep/data.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// Streams of random numbers under one seed; a stream's low bits name the row or the epoch.
constexpr uint64_t kRandomRows = 0, kEpochOffsets = 1ull << 62, kEpochShuffles = 2ull << 62;

constexpr int kFeistelRounds = 6;

// The Feistel round function: 64 bits from (seed, stream, round, half).
uint64_t round_bits(uint64_t seed, uint64_t stream, int round, uint64_t half) {
  const std::array<uint32_t, 4> words =
      philox({static_cast<uint32_t>(half), static_cast<uint32_t>(half >> 32),
              static_cast<uint32_t>(stream),
              static_cast<uint32_t>(stream >> 32) ^ static_cast<uint32_t>(round) << 24},
             seed);
  return static_cast<uint64_t>(words[0]) << 32 | words[1];
}

}  // namespace

Order order_by_name(const std::string& name) {
  if (name == "random") return Order::kRandom;
  if (name == "epoch") return Order::kEpoch;
  require(name == "sequential", "[batches] expected the order random, epoch or sequential, got \"",
          name, "\"");
  return Order::kSequential;
}

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream)
    : size_(size), seed_(seed), stream_(stream) {
  require(size >= 1 && size <= 1ull << 63,  // rows * columns stays below 2^64
          "[Permutation] expected a size from 1 to 2^63, got ", size);
  rows_ = static_cast<uint64_t>(std::ceil(std::sqrt(static_cast<double>(size))));
  columns_ = (size + rows_ - 1) / rows_;  // rows * columns >= size, by less than one row
}

uint64_t Permutation::once(uint64_t value) const {
  uint64_t row = value / columns_, column = value % columns_;
  for (int round = 0; round < kFeistelRounds; round += 2) {
    row = (row + round_bits(seed_, stream_, round, column) % rows_) % rows_;
    column = (column + round_bits(seed_, stream_, round + 1, row) % columns_) % columns_;
  }
  return row * columns_ + column;
}

uint64_t Permutation::operator()(uint64_t index) const {
  do {
    index = once(index);
  } while (index >= size_);
  return index;
}

BatchOrder::BatchOrder(uint64_t tokens, const BatchOptions& options, const std::string& name)
    : options_(options), tokens_(tokens) {
  require(options.batch_size >= 1, "[batches] expected a batch size of at least 1, got ",
          options.batch_size);
  require(options.context_length >= 1, "[batches] expected a context length of at least 1, got ",
          options.context_length);
  require(options.micro_steps >= 1, "[batches] expected at least 1 micro-step, got ",
          options.micro_steps);
  require(options.rank >= 0 && options.rank < options.world_size,
          "[batches] expected a rank below the world size ", options.world_size, ", got ",
          options.rank);
  const auto context = static_cast<uint64_t>(options.context_length);
  require(tokens > context, "[", name, "] expected at least ", context + 1,
          " tokens (one context of ", context, " and the token after it), got ", tokens);
  switch (options.order) {
    case Order::kRandom:
      windows_ = tokens - context;
      break;
    case Order::kEpoch:
      // One window fewer than fits, so that every offset in [0, context) leaves as many.
      windows_ = std::max<uint64_t>(1, tokens / context - 1);
      break;
    case Order::kSequential:
      windows_ = (tokens - 1) / context;
      break;
  }
}

uint64_t BatchOrder::start(int64_t step, int64_t micro_step, int64_t row) const {
  const BatchOptions& o = options_;
  require(step >= 0 && micro_step >= 0 && micro_step < o.micro_steps,
          "[batches] expected a step of at least 0 and a micro-step below ", o.micro_steps,
          ", got ", step, " and ", micro_step);
  const auto number = static_cast<uint64_t>(
      ((step * o.micro_steps + micro_step) * o.world_size + o.rank) * o.batch_size + row);
  const auto context = static_cast<uint64_t>(o.context_length);
  if (o.order == Order::kRandom) return Rng(o.seed, kRandomRows + number).below(windows_);
  const uint64_t epoch = number / windows_, index = number % windows_;
  if (o.order == Order::kSequential) return index * context;
  const uint64_t offsets = std::min(context, tokens_ - windows_ * context);
  const uint64_t offset = Rng(o.seed, kEpochOffsets + epoch).below(offsets);
  return offset + Permutation(windows_, o.seed, kEpochShuffles + epoch)(index) * context;
}

}  // namespace flashstep
