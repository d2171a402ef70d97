// Sources: flashstep/tokenizer/*.cc
// Any bytes as text: the words are those of the pattern, cutting changes nothing, decoding gives
// them back, and merges learned from the text encode it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/chunks.h"
#include "flashstep/tokenizer/pair_learner.h"
#include "flashstep/tokenizer/reference_words.h"
#include "flashstep/tokenizer/words.h"

using namespace flashstep;  // a test program

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

Words words_of(std::string_view text, WordScanner scanner = WordScanner()) {
  Words words;
  scanner.for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// Byte values as ids, then merges learned from `words`, then special tokens.
Tokenizer learn(const Words& words, WordPattern pattern) {
  uint64_t bytes = 0;
  for (const std::string& word : words) bytes += word.size();
  PairLearner learner(words.size(), bytes);
  for (const std::string& word : words) learner.add_word(word, 1);
  Vocabulary vocabulary;
  vocabulary.pattern = pattern;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : learner.learn(20, {})) {
    vocabulary.tokens.push_back(vocabulary.tokens[left] + vocabulary.tokens[right]);
    vocabulary.merges.emplace_back(left, right);
  }
  for (const char* special : {"<|a|>", "<|a|><|", "\n\n\n"}) {
    // The words were not cut at special tokens here, so that one may have been learned.
    for (const std::string& token : vocabulary.tokens) {
      if (token == special) return Tokenizer(vocabulary);
    }
    vocabulary.special_ids.push_back(static_cast<uint32_t>(vocabulary.tokens.size()));
    vocabulary.tokens.emplace_back(special);
  }
  return Tokenizer(vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Words words = words_of(text);
  expect(words == Pattern(text).words());
  for (const auto& [pattern, split_digits] :
       {std::pair(WordPattern::kGpt2, true), std::pair(WordPattern::kGpt4, false),
        std::pair(WordPattern::kGpt4, true)}) {
    expect(words_of(text, WordScanner(pattern, split_digits)) ==
           Pattern(text, pattern, split_digits).words());
  }

  // Learning takes much longer than all else: one input in sixteen brings its own tokenizer.
  static const Words kWords =
      words_of("the cat's 'll 'll a aa aaa aaaa  \n\n\t the <|a|b| 字字 \xff\xff 11 1.1");
  static const Tokenizer kFixed[] = {learn(kWords, WordPattern::kGpt2),
                                     learn(kWords, WordPattern::kGpt4)};
  const uint8_t choice = size > 0 ? data[0] : 1;
  const std::optional<Tokenizer> learned =
      choice % 16 == 0 ? std::optional(learn(words, WordPattern::kGpt2)) : std::nullopt;
  const Tokenizer& tokenizer = learned ? *learned : kFixed[choice % 2];
  const std::vector<uint32_t> ids = tokenizer.encode(text);
  expect(tokenizer.decode(ids) == text);
  for (const size_t chunk_bytes : {1, 7, 64}) {
    std::vector<uint32_t> joined;
    for (size_t begin = 0; begin < size;) {
      const size_t end = find_chunk_end(text, begin, chunk_bytes, tokenizer.specials());
      expect(end > begin && end <= size);
      const std::vector<uint32_t> part = tokenizer.encode(text.substr(begin, end - begin));
      joined.insert(joined.end(), part.begin(), part.end());
      begin = end;
    }
    expect(joined == ids);
  }
  return 0;
}
