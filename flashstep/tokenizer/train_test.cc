#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/detail/bpe.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/hard_text.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("train_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& text, const std::string& name = "text.txt") {
    write_file(folder_ / name, text);
    return folder_ / name;
  }

  fs::path folder_;
};

using Token = std::string;
using Merges = std::vector<std::pair<Token, Token>>;

// The definition: all pairs are counted anew before every merge.
Merges train_naively(const std::vector<std::string>& texts, size_t merges,
                     const std::vector<std::string>& special_tokens,
                     WordScanner scanner = WordScanner()) {
  std::vector<SpecialTokens::Token> tokens;
  for (const auto& text : special_tokens) tokens.push_back({text, 0});
  const SpecialTokens specials(tokens);
  std::map<std::vector<Token>, uint64_t> words;
  const auto count_words = [&](std::string_view text) {
    scanner.for_each_word(text, [&](std::string_view word) {
      std::vector<Token> symbols;
      for (const char byte : word) symbols.emplace_back(1, byte);
      ++words[symbols];
    });
  };
  for (const auto& text : texts) specials.split(text, count_words, [](uint32_t) {});
  Merges learned;
  while (learned.size() < merges) {
    std::map<std::pair<Token, Token>, uint64_t> counts;
    for (const auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) counts[{symbols[i], symbols[i + 1]}] += count;
    }
    if (counts.empty()) break;
    auto best = counts.begin();  // ascending pairs: >= leaves the greatest of equally frequent ones
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second >= best->second) best = it;
    }
    const auto [left, right] = best->first;
    learned.emplace_back(left, right);
    std::map<std::vector<Token>, uint64_t> merged_words;
    for (const auto& [symbols, count] : words) {
      std::vector<Token> merged;
      for (size_t i = 0; i < symbols.size(); ++i) {
        const bool is_pair =
            i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right;
        merged.push_back(is_pair ? left + right : symbols[i]);
        i += is_pair;
      }
      merged_words[merged] += count;
    }
    words = std::move(merged_words);
  }
  return learned;
}

Merges merges_of(const Tokenizer& tokenizer) {
  Merges merges;
  for (const auto& [left, right] : tokenizer.vocabulary().merges) {
    merges.emplace_back(tokenizer.vocabulary().tokens[left], tokenizer.vocabulary().tokens[right]);
  }
  return merges;
}

// Words over few letters, so that most counts are equal and pairs overlap themselves (aaaa, abab).
std::string text_of_ties(std::mt19937_64& random) {
  const size_t letters = 1 + random() % 3;
  std::string text;
  for (size_t words = 1 + random() % 40; words > 0; --words) {
    for (size_t length = 1 + random() % 12; length > 0; --length) {
      text += static_cast<char>('a' + random() % letters);
    }
    text += " \n.<"[random() % 4];
    if (random() % 8 == 0) text += "<|endoftext|>";
  }
  return text;
}

TEST_F(TrainTest, EqualsTheNaiveTrainerOnTies) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    const std::string text = text_of_ties(random);
    BpeOptions options;
    options.special_tokens = {"<|endoftext|>"};
    const size_t merges = 1 + random() % 60;
    options.vocab_size = static_cast<int64_t>(257 + merges);
    options.threads = 1 + static_cast<int>(random() % 3);
    options.chunk_bytes = 1 + random() % 64;
    const Tokenizer trained = train_bpe({write(text)}, options);
    ASSERT_EQ(merges_of(trained), train_naively({text}, merges, options.special_tokens)) << text;
  }
}

TEST_F(TrainTest, EqualsTheNaiveTrainerOnHardText) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 30; ++round) {
    const std::vector<std::string> texts = {hard_text(random, 300), hard_text(random, 100)};
    BpeOptions options;
    options.special_tokens = {"<|end|>", "<|endoftext|>"};
    options.vocab_size = 256 + 2 + 80;
    options.threads = 1 + round % 3;
    options.chunk_bytes = 1 + random() % 256;
    options.split_digits = round % 4 == 0;
    if (round % 3 == 0) options.pattern = WordPattern::kGpt4;
    const Tokenizer trained = train_bpe({write(texts[0]), write(texts[1], "b.txt")}, options);
    ASSERT_EQ(merges_of(trained), train_naively(texts, 80, options.special_tokens,
                                                WordScanner(options.pattern, options.split_digits)))
        << round;
  }
}

TEST_F(TrainTest, RefusesChunksOfNothing) {
  BpeOptions options;
  options.chunk_bytes = 0;
  EXPECT_THROW(train_bpe({write("a b")}, options), UserError);
}

TEST_F(TrainTest, ThreadsAndChunksDoNotMatter) {
  std::mt19937_64 random(3);
  const fs::path text = write(hard_text(random, 30'000));
  std::string fingerprint;
  for (const int threads : {1, 2, 3, 8}) {
    for (const size_t chunk_bytes : {size_t{100}, size_t{5'000}, kChunkBytes}) {
      BpeOptions options;
      options.vocab_size = 1'000;
      options.threads = threads;
      options.chunk_bytes = chunk_bytes;
      const Tokenizer trained = train_bpe({text}, options);
      if (fingerprint.empty()) fingerprint = trained.fingerprint();
      ASSERT_EQ(trained.fingerprint(), fingerprint);
    }
  }
}

TEST_F(TrainTest, LaysOutBytesMergesAndSpecials) {
  BpeOptions options;
  options.vocab_size = 260;
  options.special_tokens = {"<|a|>", "<|b|>"};
  const Tokenizer trained = train_bpe({write("xyxyxy<|a|>")}, options);
  EXPECT_EQ(trained.vocab_size(), 260);
  EXPECT_EQ(trained.vocabulary().tokens[0], "!");
  EXPECT_EQ(trained.vocabulary().tokens[220], " ");
  EXPECT_EQ(trained.vocabulary().tokens[256], "xy");
  EXPECT_EQ(trained.vocabulary().tokens[257], "xyxy");
  EXPECT_EQ(trained.token_id("<|a|>"), 258u);
  EXPECT_EQ(trained.token_id("<|b|>"), 259u);
}

TEST_F(TrainTest, StopsWhenNoPairIsLeft) {
  BpeOptions options;
  options.vocab_size = 1'000;
  EXPECT_EQ(train_bpe({write("abc")}, options).vocab_size(), 258);
  EXPECT_EQ(train_bpe({write("a b\nc")}, options).vocab_size(), 257);  // " b"
  EXPECT_EQ(train_bpe({write("a")}, options).vocab_size(), 256);
}

TEST_F(TrainTest, OneLongWordIsNoTrouble) {
  std::mt19937_64 random(4);
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "ACGT"[random() % 4];
  BpeOptions options;
  options.vocab_size = 2'000;
  const Tokenizer trained = train_bpe({write(text)}, options);
  EXPECT_EQ(trained.vocab_size(), 2'000);
  EXPECT_EQ(trained.decode(trained.encode(text)), text);
}

TEST_F(TrainTest, ReportsProgress) {
  uint64_t bytes = 0, merges = 0;
  BpeOptions options;
  options.vocab_size = 258;
  options.progress = [&](uint64_t done, uint64_t) { bytes = done; };
  options.merge_progress = [&](uint64_t done, uint64_t) { merges = done; };
  train_bpe({write("abcabc")}, options);
  EXPECT_EQ(bytes, 6u);
  EXPECT_EQ(merges, 2u);
}

TEST_F(TrainTest, RefusesBadInput) {
  BpeOptions options;
  options.vocab_size = 300;
  EXPECT_THROW(train_bpe({folder_ / "missing.txt"}, options), UserError);
  EXPECT_THROW(train_bpe({folder_}, options), UserError);
  EXPECT_THROW(train_bpe({write("")}, options), UserError);
  EXPECT_THROW(train_bpe({}, options), UserError);
  const fs::path text = write("some text");
  options.special_tokens = {"<|a|>"};
  options.vocab_size = 256;
  EXPECT_THROW(train_bpe({text}, options), UserError);
  options.vocab_size = 300;
  options.threads = -1;
  EXPECT_THROW(train_bpe({text}, options), UserError);
  options.threads = 1;
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {""}, {"<|a|>", "<|a|>"}, {"\xff"}, {"a"}, {"é"}, {"Ġt"}}) {
    options.special_tokens = bad;
    EXPECT_THROW(train_bpe({text}, options), UserError) << ::testing::PrintToString(bad);
  }
}

TEST_F(TrainTest, AVocabularyBeyondTheTextCostsNothing) {
  BpeOptions options;
  options.vocab_size = 1'000'000'000;  // 24 GB, were memory laid out for every one of them
  EXPECT_EQ(train_bpe({write("abab")}, options).vocab_size(), 258);
}

}  // namespace
}  // namespace flashstep
