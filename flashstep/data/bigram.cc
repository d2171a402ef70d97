#include "flashstep/data/bigram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr uint64_t kCountedTokens = 1 << 20;
constexpr uint64_t kMostTuningTokens = 1'000'000;
constexpr int kIterations = 30;  // the likelihood then moves by less than 1e-5 nats per token
constexpr int kBuckets = 65;     // by the bit width of c(a)

uint64_t pair_of(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

// Calls visit(a, b) for the neighbours at (i-1, i), i in [begin, end), begin >= 1, streaming.
template <typename Visit>
void for_each_pair(const TokenFile& tokens, uint64_t begin, uint64_t end, Visit visit) {
  std::vector<uint32_t> chunk;
  for (uint64_t at = begin; at < end; at += kCountedTokens) {
    const uint64_t stop = std::min(at + kCountedTokens, end);
    chunk.resize(stop - at + 1);
    tokens.read(at - 1, std::span<uint32_t>(chunk));
    for (size_t i = 1; i < chunk.size(); ++i) visit(chunk[i - 1], chunk[i]);
    tokens.release_before(at);
  }
}

// Counts of the pairs that will be asked for, and of no others: open addressing, linear probing,
// at most half full.
class PairCounts {
 public:
  void track(uint64_t pair) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[find(pair)];
    if (slot.used) return;
    slot = {pair, 0, true};
    ++used_;
  }
  void add(uint64_t pair) {
    Slot& slot = slots_[find(pair)];
    slot.count += slot.used;
  }
  uint64_t count(uint64_t pair) const { return slots_[find(pair)].count; }

 private:
  struct Slot {
    uint64_t pair = 0;
    uint64_t count : 63 = 0;
    uint64_t used : 1 = 0;
  };

  // The pair's slot, or the free one where it belongs.
  size_t find(uint64_t pair) const {
    // Multiplicative hashing by 2^64 / golden ratio (Knuth, volume 3, section 6.4): high bits.
    size_t at = pair * 0x9E3779B97F4A7C15ull >> shift_;
    while (slots_[at].used && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    --shift_;
    for (const Slot& slot : old) {
      if (slot.used) slots_[find(slot.pair)] = slot;
    }
  }

  int shift_ = 64 - 10;
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << 10);
  size_t used_ = 0;
};

struct Weights {
  double pair = 1.0 / 3, single = 1.0 / 3, uniform = 1.0 / 3;
};

class InterpolatedBigram {
 public:
  explicit InterpolatedBigram(int64_t vocab_size)
      : vocab_size_(vocab_size), singles_(static_cast<size_t>(vocab_size)), contexts_(singles_) {}

  void track(uint32_t a, uint32_t b) { pairs_.track(pair_of(a, b)); }

  void count_first(uint32_t a) {
    ++singles_[a];
    ++total_;
  }
  void count(uint32_t a, uint32_t b) {
    count_first(b);
    ++contexts_[a];
    pairs_.add(pair_of(a, b));
  }

  // One step of expectation-maximisation on (a, b) pairs that `visit_all` calls back with.
  template <typename VisitAll>
  void improve_weights(VisitAll visit_all) {
    std::array<std::array<double, 4>, kBuckets> sums{};  // shares of the three parts, and visits
    visit_all([&](uint32_t a, uint32_t b) {
      const std::array<double, 3> parts = weighted_parts(a, b);
      auto& sum = sums[bucket(a)];
      const double whole = parts[0] + parts[1] + parts[2];
      for (size_t i = 0; i < 3; ++i) sum[i] += parts[i] / whole;
      sum[3] += 1;
    });
    for (size_t i = 0; i < kBuckets; ++i) {
      const auto& [pair, single, uniform, visits] = sums[i];
      // One imagined visit of each part keeps every probability above zero, and sense in buckets
      // that were never visited. Contexts that were never seen (bucket 0) have no pairs to ask.
      const double pair_prior = i == 0 ? 0 : 1, all = visits + pair_prior + 2;
      weights_[i] = {(pair + pair_prior) / all, (single + 1) / all, (uniform + 1) / all};
    }
  }

  double probability(uint32_t a, uint32_t b) const {
    const std::array<double, 3> parts = weighted_parts(a, b);
    return parts[0] + parts[1] + parts[2];
  }

 private:
  size_t bucket(uint32_t a) const { return static_cast<size_t>(std::bit_width(contexts_[a])); }

  std::array<double, 3> weighted_parts(uint32_t a, uint32_t b) const {
    const Weights& w = weights_[bucket(a)];
    const double context = static_cast<double>(std::max<uint64_t>(contexts_[a], 1));
    return {w.pair * static_cast<double>(pairs_.count(pair_of(a, b))) / context,
            w.single * static_cast<double>(singles_[b]) / static_cast<double>(total_),
            w.uniform / static_cast<double>(vocab_size_)};
  }

  int64_t vocab_size_;
  std::vector<uint64_t> singles_, contexts_;  // c(b); c(a) as the first of a pair
  PairCounts pairs_;
  uint64_t total_ = 0;
  std::array<Weights, kBuckets> weights_{};
};

}  // namespace

double bigram_cross_entropy(const TokenFile& train, const TokenFile& held_out, int64_t vocab_size,
                            const ProgressFunction& progress) {
  require(train.size() >= kFewestBigramTokens, "[bigram] expected at least ", kFewestBigramTokens,
          " tokens to train on, got ", train.size(), " in ", train.path().string());
  require(held_out.size() >= 2, "[bigram] expected at least 2 held-out tokens, got ",
          held_out.size(), " in ", held_out.path().string());
  train.check_ids_below(vocab_size);
  held_out.check_ids_below(vocab_size);

  const uint64_t tuning = train.size() - std::min(train.size() / 10, kMostTuningTokens);
  InterpolatedBigram model(vocab_size);
  const auto track = [&](uint32_t a, uint32_t b) { model.track(a, b); };
  for_each_pair(held_out, 1, held_out.size(), track);
  for_each_pair(train, tuning, train.size(), track);

  uint64_t done = 0;
  const auto count = [&](uint32_t a, uint32_t b) {
    model.count(a, b);
    if (++done % kCountedTokens == 0 && progress) progress(done, train.size());
  };
  model.count_first(train[0]);
  for_each_pair(train, 1, tuning, count);
  for (int i = 0; i < kIterations; ++i) {
    model.improve_weights([&](auto visit) { for_each_pair(train, tuning, train.size(), visit); });
  }
  for_each_pair(train, tuning, train.size(), count);
  if (progress) progress(train.size(), train.size());

  double nats = 0;
  for_each_pair(held_out, 1, held_out.size(),
                [&](uint32_t a, uint32_t b) { nats -= std::log(model.probability(a, b)); });
  return nats / static_cast<double>(held_out.size() - 1);
}

}  // namespace flashstep
