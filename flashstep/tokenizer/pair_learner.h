// The second half of training: from the distinct words of a text and their counts to merges.
//
// The symbols of all words lie in one array, a place per byte: a token's id stands at its first and
// at its last byte, so that both neighbours of a token are found at once, and a merge writes two
// places. A pair keeps the list of places where it was made; lists are written once (a pair can
// only come to be while the newer of its two tokens does) and read once, when the pair is merged,
// each place being checked then. Hence counts only fall after a pair is made, and a heap whose
// stale entries are put back on the way finds the next pair. The work of one merge is proportional
// to its occurrences, however long the words are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashstep/base/progress.h"

namespace flashstep {

class PairLearner {
 public:
  // Ids: a byte is its value, merge i makes 256 + i.
  using Pair = std::pair<uint32_t, uint32_t>;

  // Makes room for words of so many bytes in all. UserError beyond 4 GiB of distinct words.
  PairLearner(uint64_t words, uint64_t bytes);
  void add_word(std::string_view word, uint64_t count);

  // The first `merges` merges, or fewer when no pair is left. To be called once, after the last
  // add_word().
  std::vector<Pair> learn(int64_t merges, const ProgressFunction& progress);

 private:
  struct Place {
    uint32_t position;  // of the left token's first byte
    uint32_t word;
  };
  struct PairState {
    uint32_t left, right;
    uint64_t count;       // occurrences now, weighted by the words' counts
    const Place* places;  // where it was made
    uint32_t place_count;
  };
  // An occurrence of a new pair: its neighbour besides the new token.
  struct Event {
    uint32_t neighbour;
    Place place;
  };
  // The events on one side of a new token, and their sums by neighbour.
  struct Side {
    std::vector<Event> events;
    std::vector<uint32_t> neighbours;  // in the order in which they turned up
    std::vector<uint64_t> counts;      // by neighbour; 0 between merges
    std::vector<uint32_t> sizes;       // by neighbour; 0 between merges
    void add(uint32_t neighbour, Place place, uint64_t count);
  };
  struct HeapEntry {
    uint64_t count;
    uint32_t pair;
  };

  void count_byte_pairs();
  uint32_t pair_index(uint32_t left, uint32_t right) const;  // of a pair that is there
  void insert_pair(uint32_t left, uint32_t right, uint64_t count, const Place* places,
                   uint32_t place_count);
  void grow_index();
  size_t first_slot(uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> index_shift_; }

  bool is_less(const HeapEntry& a, const HeapEntry& b) const;
  void push(uint32_t pair);
  bool pop_best(uint32_t& pair);

  void merge(uint32_t pair, uint32_t result);
  void merge_place(Place place, uint32_t left, uint32_t right, uint32_t result);
  void make_pairs(const PairState& merged, uint32_t result);
  void make_side(Side& side, Place* room, bool is_left, const PairState& merged, uint32_t result);

  std::vector<uint32_t> symbols_;  // kEdge before, between and behind words
  std::vector<uint64_t> word_counts_;
  std::vector<std::string> tokens_;  // bytes by id
  std::vector<uint32_t> lengths_;    // of tokens_, close together
  std::vector<PairState> pairs_;
  std::vector<uint64_t> index_keys_;  // open addressing: left << 32 | right; kFree
  std::vector<uint32_t> index_values_;
  int index_shift_;
  std::vector<std::unique_ptr<Place[]>> places_;

  std::vector<uint32_t> buckets_[64];  // pairs whose count was in [2^i, 2^(i+1))
  std::vector<HeapEntry> heap_;        // those of the highest bucket that is not empty
  int heap_bucket_ = 64;

  Side left_, right_;
  std::vector<Place> doubled_;  // new token next to new token
  uint64_t doubled_count_ = 0;
};

}  // namespace flashstep
