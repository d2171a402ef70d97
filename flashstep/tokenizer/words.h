// Cuts text into words (pre-tokens) exactly as a pattern does, GPT-2's or GPT-4's:
//
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//   |\s*[\r\n]+|\s+(?!\S)|\s+
//
// over the classes of Unicode 16. With split_digits every \p{N} is a word: GPT-2's pattern then
// cuts the pieces of a text that is cut before and behind each of them first (Hugging Face's
// Digits(individual_digits=True)), GPT-4's has \p{N} in place of \p{N}{1,3} (Qwen 2's). A byte
// that is no part of well-formed UTF-8 is a character that is neither letter, number nor white
// space, as its replacement U+FFFD would be. Words never overlap and leave nothing out: joined,
// they are the text.
//
// There is no matching engine, because where a word starts is a local question. A character that is
// not white space starts a word where its class differs from the class before it, unless a ' '
// stands before it (which it then belongs to). White space starts a word behind anything else, and
// the last of several white-space characters starts one when something else follows, since
// \s+(?!\S) gives it up. Contractions ('s, 'll, ...) where the apostrophe starts a word are the one
// exception. So the classes are laid out as bit masks, 64 bytes to a machine word, and the starts
// are computed for 64 bytes at a time. GPT-4's pattern differs in what stands with letters and in
// line ends: see mark_gpt4_starts().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "flashstep/detail/bpe.h"

namespace flashstep {

class WordScanner {
 public:
  explicit WordScanner(WordPattern pattern = WordPattern::kGpt2, bool split_digits = false)
      : is_gpt4_(pattern == WordPattern::kGpt4), split_digits_(split_digits) {}

  // Calls use(std::string_view word) for each word of `text`, in order. Needs a fixed amount of
  // memory, and more only for a word that is longer than kWindowBytes.
  template <typename Use>
  void for_each_word(std::string_view text, Use&& use);

  static constexpr size_t kWindowBytes = 1 << 14;  // its masks stay in the first-level cache
  // A start is known when the next character and a contraction that begins before it are: three
  // bytes of the one, three of the other, rounded up. In GPT-4's pattern white space must be known
  // to its end.
  static constexpr size_t kLookaheadBytes = 8;

 private:
  // One bit a byte of the text. All bytes of a character carry the bits of its class.
  struct Masks {
    uint64_t letters, numbers, spaces;
    uint64_t leads;      // the first byte of a character
    uint64_t blanks;     // ' '
    uint64_t quotes;     // the apostrophe
    uint64_t line_ends;  // \r and \n; in GPT-4's pattern only
  };

  // Fills starts_ for the first min(window, text.size()) bytes of `text`, which begins with a
  // word's start, and returns for how many of them it is certain: all where they are the text.
  size_t mark_starts(std::string_view text, size_t window);
  void mark_classes(std::string_view text, size_t size);
  uint32_t mark_char(std::string_view text, size_t at);
  void mark_gpt2_starts(size_t size);
  void mark_gpt4_starts(size_t size);
  void mark_wide_spaces(std::string_view text, size_t size);
  void mark_contractions(std::string_view text, size_t size);
  // Of GPT-4's pattern only.
  void mark_long_numbers(size_t size);
  void mark_indents(size_t size);
  void join_wide_signs(std::string_view text, size_t size);
  bool has(uint64_t Masks::*bits, size_t at) const { return masks_[at / 64].*bits >> at % 64 & 1; }
  void set_start(size_t at) { starts_[at / 64] |= uint64_t{1} << at % 64; }
  void clear_start(size_t at) { starts_[at / 64] &= ~(uint64_t{1} << at % 64); }

  bool is_gpt4_;
  bool split_digits_;
  std::vector<Masks> masks_;
  std::vector<uint64_t> starts_;
  std::vector<size_t> wide_spaces_;   // where white space of several bytes begins
  std::vector<size_t> apostrophes_;   // those that start a word
  std::vector<size_t> wide_signs_;    // characters of several bytes that are of no class
  std::vector<size_t> long_numbers_;  // where those of more than three bytes begin
  std::vector<size_t> indents_;       // where white space begins behind a line end of its own
};

template <typename Use>
void WordScanner::for_each_word(std::string_view text, Use&& use) {
  size_t window = kWindowBytes;
  while (!text.empty()) {
    const size_t certain = mark_starts(text, window);
    const bool is_last = certain == text.size();
    size_t begin = 0;
    for (size_t block = 0; block * 64 < certain; ++block) {
      for (uint64_t bits = starts_[block]; bits != 0; bits &= bits - 1) {
        const size_t start = block * 64 + static_cast<size_t>(std::countr_zero(bits));
        if (start >= certain) break;
        if (start == 0) continue;
        use(text.substr(begin, start - begin));
        begin = start;
      }
    }
    if (is_last) {
      use(text.substr(begin));
      return;
    }
    window = begin == 0 ? 2 * window : kWindowBytes;
    text.remove_prefix(begin);  // the scan is memoryless from a word's start on
  }
}

// The first position >= `from` where text may be cut, or text.size(): where a word always ends
// between two neighbouring characters in either pattern, whatever stands around them. (Other then
// letter may be a contraction; white space may belong to what follows, a line end to signs.)
size_t find_cut(std::string_view text, size_t from);

}  // namespace flashstep
