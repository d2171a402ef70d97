#include "flashstep/tokenizer/pair_learner.h"

#include <algorithm>
#include <bit>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr uint32_t kEdge = 0xFFFFFFFF;    // no token: a word's edge
constexpr uint32_t kInside = 0xFFFFFFFE;  // where a token began that is part of a longer one now
constexpr uint64_t kFree = ~uint64_t{0};
constexpr size_t kPrefetchDistance =
    12;  // places ahead, enough to hide a miss of the last-level cache

int bucket_of(uint64_t count) { return std::bit_width(count) - 1; }

constexpr uint64_t key_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

void PairLearner::Side::add(uint32_t neighbour, Place place, uint64_t count) {
  if (sizes[neighbour]++ == 0) neighbours.push_back(neighbour);
  counts[neighbour] += count;
  events.push_back({neighbour, place});
}

PairLearner::PairLearner(uint64_t words, uint64_t bytes)
    : index_keys_(1 << 12, kFree), index_values_(1 << 12), index_shift_(64 - 12) {
  require(bytes + words + 1 < kInside,
          "[tokenizer train] expected at most 4 GiB of distinct words, got ", human_bytes(bytes),
          "; is this text?");
  symbols_.reserve(bytes + words + 1);
  symbols_.push_back(kEdge);
  word_counts_.reserve(words);
  for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
  lengths_.assign(256, 1);
}

void PairLearner::add_word(std::string_view word, uint64_t count) {
  if (word.size() < 2) return;  // has no pair
  for (const char byte : word) symbols_.push_back(static_cast<uint8_t>(byte));
  symbols_.push_back(kEdge);
  word_counts_.push_back(count);
}

std::vector<PairLearner::Pair> PairLearner::learn(int64_t merges,
                                                  const ProgressFunction& progress) {
  // A merge takes a place at least out of the text.
  merges = std::min(merges, static_cast<int64_t>(symbols_.size()));
  const size_t vocabulary = 256 + static_cast<size_t>(merges);
  for (Side* side : {&left_, &right_}) {
    side->counts.assign(vocabulary, 0);
    side->sizes.assign(vocabulary, 0);
  }
  count_byte_pairs();
  std::vector<Pair> learned;
  uint32_t best;
  while (static_cast<int64_t>(learned.size()) < merges && pop_best(best)) {
    const auto [left, right] = std::pair(pairs_[best].left, pairs_[best].right);
    learned.emplace_back(left, right);
    tokens_.push_back(tokens_[left] + tokens_[right]);
    lengths_.push_back(lengths_[left] + lengths_[right]);
    merge(best, static_cast<uint32_t>(tokens_.size() - 1));
    if (progress && learned.size() % 256 == 0) {
      progress(learned.size(), static_cast<uint64_t>(merges));
    }
  }
  if (progress) progress(learned.size(), learned.size());
  return learned;
}

// Counting sort of all places by their two bytes.
void PairLearner::count_byte_pairs() {
  constexpr size_t kPairs = 1 << 16;
  std::vector<uint64_t> counts(kPairs, 0);
  std::vector<uint32_t> sizes(kPairs, 0);
  const auto for_each_place = [&](auto&& use) {
    uint32_t word = 0;
    for (uint32_t i = 1; i + 1 < symbols_.size(); ++i) {
      if (symbols_[i] == kEdge) {
        ++word;
      } else if (symbols_[i + 1] != kEdge) {
        use(symbols_[i] << 8 | symbols_[i + 1], Place{i, word});
      }
    }
  };
  for_each_place([&](uint32_t pair, Place place) {
    counts[pair] += word_counts_[place.word];
    ++sizes[pair];
  });
  uint64_t total = 0;
  std::vector<uint64_t> ends(kPairs);
  for (size_t pair = 0; pair < kPairs; ++pair) {
    ends[pair] = total;
    total += sizes[pair];
  }
  places_.push_back(std::make_unique_for_overwrite<Place[]>(total));
  Place* places = places_.back().get();
  for_each_place([&](uint32_t pair, Place place) { places[ends[pair]++] = place; });
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    if (counts[pair] == 0) continue;
    insert_pair(pair >> 8, pair & 0xFF, counts[pair], places + ends[pair] - sizes[pair],
                sizes[pair]);
  }
}

uint32_t PairLearner::pair_index(uint32_t left, uint32_t right) const {
  const uint64_t key = key_of(left, right);
  size_t slot = first_slot(key);
  while (index_keys_[slot] != key) slot = (slot + 1) & (index_keys_.size() - 1);
  return index_values_[slot];
}

void PairLearner::insert_pair(uint32_t left, uint32_t right, uint64_t count, const Place* places,
                              uint32_t place_count) {
  if (2 * (pairs_.size() + 1) > index_keys_.size()) grow_index();
  const uint64_t key = key_of(left, right);
  size_t slot = first_slot(key);
  while (index_keys_[slot] != kFree) slot = (slot + 1) & (index_keys_.size() - 1);
  const auto pair = static_cast<uint32_t>(pairs_.size());
  index_keys_[slot] = key;
  index_values_[slot] = pair;
  pairs_.push_back({left, right, count, places, place_count});
  push(pair);
}

void PairLearner::grow_index() {
  index_keys_.assign(2 * index_keys_.size(), kFree);
  index_values_.resize(index_keys_.size());
  --index_shift_;
  for (uint32_t pair = 0; pair < pairs_.size(); ++pair) {
    const uint64_t key = key_of(pairs_[pair].left, pairs_[pair].right);
    size_t slot = first_slot(key);
    while (index_keys_[slot] != kFree) slot = (slot + 1) & (index_keys_.size() - 1);
    index_keys_[slot] = key;
    index_values_[slot] = pair;
  }
}

bool PairLearner::is_less(const HeapEntry& a, const HeapEntry& b) const {
  if (a.count != b.count) return a.count < b.count;
  const PairState &x = pairs_[a.pair], &y = pairs_[b.pair];
  const int by_left = tokens_[x.left].compare(tokens_[y.left]);
  return by_left != 0 ? by_left < 0 : tokens_[x.right] < tokens_[y.right];
}

void PairLearner::push(uint32_t pair) {
  const int bucket = bucket_of(pairs_[pair].count);
  if (bucket != heap_bucket_) {
    buckets_[bucket].push_back(pair);
    return;
  }
  heap_.push_back({pairs_[pair].count, pair});
  std::push_heap(heap_.begin(), heap_.end(),
                 [&](const HeapEntry& a, const HeapEntry& b) { return is_less(a, b); });
}

// Only pairs of the highest order of magnitude are kept in a heap: most pairs are rare, and never
// compared.
bool PairLearner::pop_best(uint32_t& pair) {
  const auto less = [&](const HeapEntry& a, const HeapEntry& b) { return is_less(a, b); };
  while (true) {
    while (heap_.empty()) {
      if (--heap_bucket_ < 0) return false;
      std::vector<uint32_t> candidates;
      candidates.swap(buckets_[heap_bucket_]);
      for (const uint32_t candidate : candidates) {
        const uint64_t count = pairs_[candidate].count;
        if (count == 0) continue;
        if (bucket_of(count) == heap_bucket_) {
          heap_.push_back({count, candidate});
        } else {
          buckets_[bucket_of(count)].push_back(candidate);
        }
      }
      std::make_heap(heap_.begin(), heap_.end(), less);
    }
    std::pop_heap(heap_.begin(), heap_.end(), less);
    const HeapEntry best = heap_.back();
    heap_.pop_back();
    const uint64_t count = pairs_[best.pair].count;
    if (count == best.count) {
      pair = best.pair;
      return true;
    }
    if (count > 0) push(best.pair);  // it fell since
  }
}

void PairLearner::merge(uint32_t pair, uint32_t result) {
  const PairState merged = pairs_[pair];  // a copy: pairs_ grows
  for (uint32_t i = 0; i < merged.place_count; ++i) {
    if (i + kPrefetchDistance < merged.place_count) {
      const Place ahead = merged.places[i + kPrefetchDistance];
      __builtin_prefetch(&symbols_[ahead.position]);
      __builtin_prefetch(&word_counts_[ahead.word]);
    }
    merge_place(merged.places[i], merged.left, merged.right, result);
  }
  make_pairs(merged, result);
  pairs_[pair].count = 0;
}

// Places come in ascending order, so that of overlapping occurrences (aaa) the leftmost is merged.
void PairLearner::merge_place(Place place, uint32_t left, uint32_t right, uint32_t result) {
  const uint32_t begin = place.position;
  if (symbols_[begin] != left) return;
  const uint32_t middle = begin + lengths_[left];
  if (symbols_[middle] != right) return;
  const uint32_t end = middle + lengths_[right];
  symbols_[begin] = result;
  symbols_[middle] = kInside;
  symbols_[end - 1] = result;

  const uint64_t count = word_counts_[place.word];
  const uint32_t before = symbols_[begin - 1], after = symbols_[end];
  if (before != kEdge && before != result) {
    left_.add(before, {begin - lengths_[before], place.word}, count);
  }
  if (after == kEdge) return;
  if (after == left && symbols_[end + lengths_[left]] == right) {
    // The next token is merged too: it is this pair's place that counts, not the passing (result,
    // left).
    doubled_.push_back(place);
    doubled_count_ += count;
  } else {
    right_.add(after, place, count);
  }
}

void PairLearner::make_pairs(const PairState& merged, uint32_t result) {
  const size_t total = left_.events.size() + right_.events.size() + doubled_.size();
  if (total == 0) return;
  places_.push_back(std::make_unique_for_overwrite<Place[]>(total));
  Place* room = places_.back().get();
  make_side(left_, room, true, merged, result);
  room += left_.events.size();
  make_side(right_, room, false, merged, result);
  room += right_.events.size();
  left_.events.clear();
  right_.events.clear();
  if (doubled_.empty()) return;
  std::copy(doubled_.begin(), doubled_.end(), room);
  pairs_[pair_index(merged.right, merged.left)].count -= doubled_count_;
  insert_pair(result, result, doubled_count_, room, static_cast<uint32_t>(doubled_.size()));
  doubled_.clear();
  doubled_count_ = 0;
}

// Each neighbour's pair with the old token gives its count and its places to the pair with the new
// one.
void PairLearner::make_side(Side& side, Place* room, bool is_left, const PairState& merged,
                            uint32_t result) {
  uint32_t end = 0;
  for (const uint32_t neighbour : side.neighbours) {
    const uint32_t begin = end;
    end += side.sizes[neighbour];
    side.sizes[neighbour] = begin;
  }
  for (const Event& event : side.events) room[side.sizes[event.neighbour]++] = event.place;
  uint32_t begin = 0;
  for (const uint32_t neighbour : side.neighbours) {
    const uint64_t count = side.counts[neighbour];
    const uint32_t old_pair =
        is_left ? pair_index(neighbour, merged.left) : pair_index(merged.right, neighbour);
    pairs_[old_pair].count -= count;
    insert_pair(is_left ? neighbour : result, is_left ? result : neighbour, count, room + begin,
                side.sizes[neighbour] - begin);
    begin = side.sizes[neighbour];
    side.counts[neighbour] = 0;
    side.sizes[neighbour] = 0;
  }
  side.neighbours.clear();
}

}  // namespace flashstep
