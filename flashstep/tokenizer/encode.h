// One thread's encoder: the scanner, the merger, and a cache of the words it has met.
#pragma once

#include <string_view>
#include <vector>

#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/chunks.h"
#include "flashstep/tokenizer/word_table.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {

class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        scanner_(tokenizer.vocabulary().pattern, tokenizer.vocabulary().split_digits) {}

  // Appends the tokens of `text`, special tokens included.
  void encode(std::string_view text, TokenBuffer& out);

 private:
  // Longer words are rare and repeat rarely: they are merged anew each time.
  static constexpr size_t kLongestCached = 128;
  static constexpr size_t kCacheBytes = size_t{64} << 20;  // then the cache starts anew

  // The tokens of a word: in place, or where they begin in spans_.
  struct Span {
    uint32_t count = 0;
    uint32_t ids[2] = {};  // the ids if count <= 2, else the place in ids[0]
  };

  void encode_words(std::string_view text, TokenBuffer& out);
  Span span_of_new_word(std::string_view word);
  void append_uncached(std::string_view word, TokenBuffer& out);
  void tokenize(std::string_view word);  // into tokens_

  const Tokenizer& tokenizer_;
  WordScanner scanner_;
  WordMerger merger_;
  WordTable<Span> cache_;
  std::vector<uint32_t> spans_;
  std::vector<uint32_t> tokens_;  // of one word
};

}  // namespace flashstep
