// Training: count the distinct words in parallel, learn the merges from them, lay out the
// vocabulary.
#include <algorithm>
#include <array>

#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/chunks.h"
#include "flashstep/tokenizer/pair_learner.h"
#include "flashstep/tokenizer/word_table.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {
namespace {

using WordCounts = WordTable<uint64_t>;

struct Counter {
  WordScanner scanner;
  WordCounts counts;
};

WordCounts count_words(ChunkReader& reader, const SpecialTokens& specials,
                       const BpeOptions& options) {
  const int threads = thread_count(options.threads);
  std::vector<Counter> counters(static_cast<size_t>(threads));
  for (Counter& counter : counters)
    counter.scanner = WordScanner(options.pattern, options.split_digits);
  process_chunks(
      reader, threads,
      [&](int worker, std::string_view chunk, TokenBuffer&) {
        Counter& counter = counters[static_cast<size_t>(worker)];
        const auto count_text = [&](std::string_view text) {
          const char* text_end = text.data() + text.size();
          counter.scanner.for_each_word(text, [&](std::string_view word) {
            bool is_new;
            ++counter.counts.find_or_insert(word, text_end, is_new);
          });
        };
        specials.split(chunk, count_text, [](uint32_t) {});
      },
      [](const TokenBuffer&) {}, options.progress);
  WordCounts all = std::move(counters[0].counts);
  for (size_t i = 1; i < counters.size(); ++i) {
    all.reserve(std::max(all.size(), counters[i].counts.size()));
    counters[i].counts.for_each([&](std::string_view word, uint64_t count) {
      bool is_new;
      all.find_or_insert(word, word.data() + word.size(), is_new) += count;
    });
    counters[i].counts = WordCounts();
  }
  return all;
}

// The learner's ids are byte values; the vocabulary has the bytes in GPT-2's order.
Vocabulary lay_out(const std::vector<PairLearner::Pair>& merges,
                   const std::vector<std::string>& specials) {
  Vocabulary vocabulary;
  std::array<uint32_t, 256> id_of_byte{};
  for (const uint8_t byte : bytes_in_vocabulary_order()) {
    id_of_byte[byte] = static_cast<uint32_t>(vocabulary.tokens.size());
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (auto [left, right] : merges) {
    if (left < 256) left = id_of_byte[left];
    if (right < 256) right = id_of_byte[right];
    vocabulary.tokens.push_back(vocabulary.tokens[left] + vocabulary.tokens[right]);
    vocabulary.merges.emplace_back(left, right);
  }
  for (const std::string& special : specials) {
    vocabulary.special_ids.push_back(static_cast<uint32_t>(vocabulary.tokens.size()));
    vocabulary.tokens.push_back(special);
  }
  return vocabulary;
}

}  // namespace

Tokenizer train_bpe(const std::vector<std::filesystem::path>& texts, const BpeOptions& options) {
  const auto base = static_cast<int64_t>(256 + options.special_tokens.size());
  require(options.vocab_size >= base, "[tokenizer train] expected vocab_size >= ", base,
          " (256 bytes and ", options.special_tokens.size(), " special tokens), got ",
          options.vocab_size);
  require(options.vocab_size <= int64_t{1} << 30,
          "[tokenizer train] expected vocab_size <= 2^30, got ", options.vocab_size);
  check_special_tokens(options.special_tokens, "tokenizer train");
  std::vector<SpecialTokens::Token> tokens;
  for (const std::string& text : options.special_tokens) tokens.push_back({text, 0});
  const SpecialTokens specials(std::move(tokens));

  ChunkReader reader(texts, specials, options.chunk_bytes);
  require(reader.total_bytes() > 0, "[tokenizer train] expected text, got ", texts.size(),
          texts.size() == 1 ? " empty file" : " empty files");
  WordCounts words = count_words(reader, specials, options);
  uint64_t bytes = 0;
  words.for_each([&](std::string_view word, uint64_t) { bytes += word.size(); });
  PairLearner learner(words.size(), bytes);
  words.for_each([&](std::string_view word, uint64_t count) { learner.add_word(word, count); });
  words = WordCounts();
  Vocabulary vocabulary = lay_out(learner.learn(options.vocab_size - base, options.merge_progress),
                                  options.special_tokens);
  vocabulary.pattern = options.pattern;
  vocabulary.split_digits = options.split_digits;
  return Tokenizer(std::move(vocabulary), "tokenizer train");
}

}  // namespace flashstep
