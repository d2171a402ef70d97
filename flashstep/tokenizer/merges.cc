#include <algorithm>
#include <bit>
#include <tuple>

#include "flashstep/detail/bpe.h"

namespace flashstep {
namespace {

constexpr uint32_t kGone = 0xFFFFFFFF;  // a token that was merged into its left neighbour

}  // namespace

MergeRules::MergeRules(std::span<const Merge> merges)
    : slots_(std::bit_ceil(std::max<size_t>(2, 2 * merges.size() + 1))),
      shift_(64 - std::countr_zero(slots_.size())) {
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const uint64_t pair = uint64_t{merge.left} << 32 | merge.right;
    size_t slot = first_slot(pair);
    while (slots_[slot].rule.rank != kNoRank) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {pair, {rank, merge.result}};
  }
}

void WordMerger::merge_short(std::vector<uint32_t>& tokens, const MergeRules& rules) {
  if (tokens.size() < 2) return;
  rules_.clear();
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    rules_.push_back(rules.find(tokens[i], tokens[i + 1]));
  }
  while (!rules_.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < rules_.size(); ++i) {
      if (rules_[i].rank < rules_[best].rank) best = i;
    }
    if (rules_[best].rank == MergeRules::kNoRank) return;
    tokens[best] = rules_[best].result;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    rules_.erase(rules_.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) rules_[best - 1] = rules.find(tokens[best - 1], tokens[best]);
    if (best < rules_.size()) rules_[best] = rules.find(tokens[best], tokens[best + 1]);
  }
}

namespace {
// For the heap functions, which put the greatest in front.
template <typename Candidate>
bool is_worse(const Candidate& a, const Candidate& b) {
  return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
}
}  // namespace

void WordMerger::add_candidate(const std::vector<uint32_t>& tokens, const MergeRules& rules,
                               size_t left, size_t right) {
  const MergeRules::Rule rule = rules.find(tokens[left], tokens[right]);
  if (rule.rank == MergeRules::kNoRank) return;
  heap_.push_back({rule.rank, rule.result, left, right, tokens[left], tokens[right]});
  std::push_heap(heap_.begin(), heap_.end(), is_worse<Candidate>);
}

void WordMerger::merge_long(std::vector<uint32_t>& tokens, const MergeRules& rules) {
  const size_t count = tokens.size();
  previous_.resize(count);
  next_.resize(count);
  heap_.clear();
  for (size_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;  // wraps at 0, where it is not used
    next_[i] = i + 1;
    if (i + 1 < count) add_candidate(tokens, rules, i, i + 1);
  }
  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), is_worse<Candidate>);
    heap_.pop_back();
    if (tokens[best.left] != best.left_id || tokens[best.right] != best.right_id ||
        next_[best.left] != best.right) {
      continue;
    }
    tokens[best.left] = best.result;
    tokens[best.right] = kGone;
    const size_t after = next_[best.right];
    next_[best.left] = after;
    if (after < count) {
      previous_[after] = best.left;
      add_candidate(tokens, rules, best.left, after);
    }
    if (best.left > 0) add_candidate(tokens, rules, previous_[best.left], best.left);
  }
  std::erase(tokens, kGone);
}

}  // namespace flashstep
