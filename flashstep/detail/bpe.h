// The parts of a tokenizer: how words are found, merge rules and special tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

// How text is cut into words (pre-tokens), across which nothing merges.
enum class WordPattern {
  kGpt2,  // GPT-2's
  kGpt4,  // GPT-4's (cl100k_base), and Llama 3's: a number has three digits at most, a sign stands
          // with the letters behind it, line ends with the signs before them
};
WordPattern word_pattern_by_name(const std::string& name);  // gpt2 or gpt4; UserError for others
const char* name_of(WordPattern pattern);

// The merge rules of a BPE vocabulary, and how they turn one word into tokens.

struct Merge {
  uint32_t left, right;  // the ids of two neighbouring tokens
  uint32_t result;       // the id of the token that replaces them
};

// The rules in the order of their ranks (a smaller rank is applied first), found by pair.
class MergeRules {
 public:
  static constexpr uint32_t kNoRank = 0xFFFFFFFF;
  struct Rule {
    uint32_t rank = kNoRank;
    uint32_t result = 0;
  };

  MergeRules() : MergeRules(std::span<const Merge>{}) {}
  explicit MergeRules(std::span<const Merge> merges);

  // rank kNoRank when the two do not merge.
  Rule find(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    for (size_t slot = first_slot(pair);; slot = (slot + 1) & (slots_.size() - 1)) {
      const Slot& candidate = slots_[slot];
      if (candidate.pair == pair) return candidate.rule;
      if (candidate.rule.rank == kNoRank) return {};
    }
  }

 private:
  struct Slot {
    uint64_t pair = 0;
    Rule rule;  // kNoRank: empty
  };
  // Fibonacci hashing: the high bits of the product with 2^64 / golden ratio.
  size_t first_slot(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15) >> shift_; }

  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_;
};

// Merges the tokens of one word in place, the pair of the lowest rank first and of several the
// leftmost, until no rule applies; reuses its memory from word to word.
class WordMerger {
 public:
  void merge(std::vector<uint32_t>& tokens, const MergeRules& rules) {
    if (tokens.size() <= kShortWord) {
      merge_short(tokens, rules);
    } else {
      merge_long(tokens, rules);
    }
  }

 private:
  // Up to here looking through all pairs is quicker than keeping a heap.
  static constexpr size_t kShortWord = 64;
  struct Candidate {
    uint32_t rank, result;
    size_t left, right;          // positions
    uint32_t left_id, right_id;  // as they were: else the candidate is out of date
  };

  void merge_short(std::vector<uint32_t>& tokens, const MergeRules& rules);  // O(n^2)
  void merge_long(std::vector<uint32_t>& tokens, const MergeRules& rules);   // O(n log n)
  void add_candidate(const std::vector<uint32_t>& tokens, const MergeRules& rules, size_t left,
                     size_t right);

  std::vector<MergeRules::Rule> rules_;  // of each token and its right neighbour
  std::vector<Candidate> heap_;          // the best in front
  std::vector<size_t> previous_, next_;  // a list through the tokens that are left
};

// Special tokens ("<|endoftext|>") in text: found first, so that words and merges never touch them.

class SpecialTokens {
 public:
  struct Token {
    std::string text;  // not empty
    uint32_t id;
  };
  struct Match {
    size_t begin, end;  // in bytes
    uint32_t id;
  };

  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<Token> tokens);

  // The leftmost occurrence that begins at `from` or later; of several at one place the longest.
  std::optional<Match> find(std::string_view text, size_t from) const;

  size_t longest_bytes() const { return tokens_.empty() ? 0 : tokens_[0].text.size(); }

  // Walks over `text`: on_text(std::string_view) for what lies between special tokens (never
  // empty), on_special(id) for each of them, in order.
  template <typename OnText, typename OnSpecial>
  void split(std::string_view text, OnText&& on_text, OnSpecial&& on_special) const {
    size_t done = 0;
    while (done < text.size()) {
      const std::optional<Match> match = find(text, done);
      const size_t text_end = match ? match->begin : text.size();
      if (text_end > done) on_text(text.substr(done, text_end - done));
      if (!match) return;
      on_special(match->id);
      done = match->end;
    }
  }

 private:
  size_t next_candidate(std::string_view text, size_t from) const;

  std::vector<Token> tokens_;              // longest first
  std::array<bool, 256> is_first_byte_{};  // of any token
  std::optional<char> only_first_byte_;    // when all tokens share it
};

// Throws UserError unless the texts can be special tokens: not empty, distinct, well-formed UTF-8,
// and spelled like no ordinary token could be in a vocabulary file. `where` begins the message.
void check_special_tokens(const std::vector<std::string>& texts, const std::string& where);

// What a tokenizer's directory consists of.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json", "merges.txt"};
bool is_tokenizer_file(std::string_view name);

}  // namespace flashstep
