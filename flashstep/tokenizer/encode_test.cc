#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/hard_text.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<uint32_t>;

const std::vector<std::string> kSpecials = {"<|end|>", "<|endoftext|>", "<|end", "\n\n\n",
                                            "<|endoftext|><|endoftext|>"};

class EncodeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(::testing::TempDir()) / ("encode_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::mt19937_64 random(1);
    write_file(folder_ / "train.txt", hard_text(random, 20'000));
    BpeOptions options;
    options.vocab_size = 700;
    options.special_tokens = kSpecials;
    tokenizer_ = std::make_unique<Tokenizer>(train_bpe({folder_ / "train.txt"}, options));
  }
  static void TearDownTestSuite() {
    tokenizer_.reset();
    fs::remove_all(folder_);
  }

  static inline fs::path folder_;
  static inline std::unique_ptr<Tokenizer> tokenizer_;
};

// The definition, rule by rule: in the order of ranks, all occurrences from left to right.
Ids encode_word_naively(const Tokenizer& tokenizer, std::string_view word) {
  Ids ids;
  for (const char byte : word) ids.push_back(*tokenizer.token_id({&byte, 1}));
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  for (const auto& [left, right] : vocabulary.merges) {
    const uint32_t result = *tokenizer.token_id(vocabulary.tokens[left] + vocabulary.tokens[right]);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] != left || ids[i + 1] != right) continue;
      ids[i] = result;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  return ids;
}

Ids encode_naively(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> specials = tokenizer.special_tokens();
  std::sort(specials.begin(), specials.end(),
            [](const auto& a, const auto& b) { return a.size() > b.size(); });
  Ids ids;
  WordScanner scanner(tokenizer.vocabulary().pattern, tokenizer.vocabulary().split_digits);
  std::string plain;
  const auto flush = [&] {
    scanner.for_each_word(plain, [&](std::string_view word) {
      for (const uint32_t id : encode_word_naively(tokenizer, word)) ids.push_back(id);
    });
    plain.clear();
  };
  while (!text.empty()) {
    const auto special = std::find_if(specials.begin(), specials.end(),
                                      [&](const auto& token) { return text.starts_with(token); });
    if (special == specials.end()) {
      plain += text[0];
      text.remove_prefix(1);
    } else {
      flush();
      ids.push_back(*tokenizer.token_id(*special));
      text.remove_prefix(special->size());
    }
  }
  flush();
  return ids;
}

TEST_F(EncodeTest, EqualsTheDefinitionAndRoundTrips) {
  Vocabulary vocabulary = tokenizer_->vocabulary();
  vocabulary.split_digits = true;
  Tokenizer split(vocabulary);
  vocabulary.pattern = WordPattern::kGpt4;
  Tokenizer of_gpt4(vocabulary);
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    std::string text = hard_text(random, random() % 60);
    if (round % 10 == 0) text += std::string(random() % 300, 'a') + text;  // words for the heap
    for (Tokenizer* tokenizer : {tokenizer_.get(), &split, &of_gpt4}) {
      const Ids ids = tokenizer->encode(text);
      ASSERT_EQ(ids, encode_naively(*tokenizer, text)) << ::testing::PrintToString(text);
      ASSERT_EQ(tokenizer->decode(ids), text);
    }
  }
}

TEST_F(EncodeTest, WordsOfAllLengths) {
  std::mt19937_64 random(3);
  for (size_t length = 1; length < 300; ++length) {
    std::string word;
    while (word.size() < length) word += "ab"[random() % 2];
    ASSERT_EQ(tokenizer_->encode(word), encode_naively(*tokenizer_, word)) << word;
  }
}

TEST_F(EncodeTest, SpecialTokensLongestFirstNeverSplit) {
  const auto id = [&](const char* token) { return *tokenizer_->token_id(token); };
  EXPECT_EQ(tokenizer_->encode("<|endoftext|>"), Ids{id("<|endoftext|>")});
  EXPECT_EQ(tokenizer_->encode("<|endoftext|><|endoftext|><|endoftext|>"),
            (Ids{id("<|endoftext|><|endoftext|>"), id("<|endoftext|>")}));
  EXPECT_EQ(tokenizer_->encode("<|end|>"), Ids{id("<|end|>")});
  EXPECT_EQ(tokenizer_->encode("<|endx"), (Ids{id("<|end"), id("x")}));
  EXPECT_EQ(tokenizer_->encode(" \n\n\n"), (Ids{id(" "), id("\n\n\n")}));
}

TEST_F(EncodeTest, EncodeFilesEqualsEncode) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 12; ++round) {
    const std::string first = hard_text(random, 5'000), second = hard_text(random, 10);
    write_file(folder_ / "a.txt", first);
    write_file(folder_ / "empty.txt", "");
    write_file(folder_ / "b.txt", second);
    Ids expected = tokenizer_->encode(first);
    for (const uint32_t id : tokenizer_->encode(second)) expected.push_back(id);
    EncodeOptions options;
    options.threads = 1 + round % 4;
    options.chunk_bytes = 1 + random() % 3'000;
    uint64_t done = 0, total = 0;
    options.progress = [&](uint64_t d, uint64_t t) { done = d, total = t; };
    Ids ids;
    const uint64_t count =
        encode_files(*tokenizer_, {folder_ / "a.txt", folder_ / "empty.txt", folder_ / "b.txt"},
                     options, [&](std::span<const uint32_t> piece) {
                       ids.insert(ids.end(), piece.begin(), piece.end());
                     });
    ASSERT_EQ(ids, expected);
    EXPECT_EQ(count, ids.size());
    EXPECT_EQ(done, first.size() + second.size());
    EXPECT_EQ(total, done);
  }
}

TEST_F(EncodeTest, TextBehindAFileIsEncodedApart) {
  write_file(folder_ / "a.txt", "alpha");
  write_file(folder_ / "empty.txt", "");
  EncodeOptions options;
  options.behind = {"<|endoftext|>", "", "beta"};
  for (options.threads = 1; options.threads <= 3; ++options.threads) {
    uint64_t done = 0, total = 0;
    options.progress = [&](uint64_t d, uint64_t t) { done = d, total = t; };
    Ids expected, ids;
    for (const char* text : {"alpha", "<|endoftext|>", "alpha", "beta"}) {
      for (const uint32_t id : tokenizer_->encode(text)) expected.push_back(id);
    }
    encode_files(*tokenizer_, {folder_ / "a.txt", folder_ / "a.txt", folder_ / "empty.txt"},
                 options, [&](std::span<const uint32_t> piece) {
                   ids.insert(ids.end(), piece.begin(), piece.end());
                 });
    EXPECT_EQ(ids, expected);
    EXPECT_EQ(done, 27u);
    EXPECT_EQ(total, done);
  }
}

TEST_F(EncodeTest, TextBehindEmptyFilesIsNoText) {
  write_file(folder_ / "empty.txt", "");
  EncodeOptions options;
  options.behind = {"<|endoftext|>"};
  EXPECT_THROW(encode_files(*tokenizer_, {folder_ / "empty.txt"}, options, [](auto) {}), UserError);
}

TEST_F(EncodeTest, MoreDistinctWordsThanTheCacheHolds) {
  std::string text;
  for (uint64_t i = 0; i < 1'300'000; ++i)
    text += " x" + std::to_string(i * 7919 % 100'000'007) + "yab";
  const Ids ids = tokenizer_->encode(text);
  ASSERT_EQ(tokenizer_->decode(ids), text);
  const std::string end = text.substr(text.rfind(' ', text.size() - 2'000));
  const Ids end_ids = tokenizer_->encode(end);
  EXPECT_EQ(Ids(ids.end() - static_cast<std::ptrdiff_t>(end_ids.size()), ids.end()), end_ids);
}

TEST_F(EncodeTest, ErrorsOfThreadsAndSinkArrive) {
  write_file(folder_ / "long.txt", std::string(100'000, ' ') + "word");
  EncodeOptions options;
  for (options.threads = 1; options.threads <= 3; ++options.threads) {
    options.chunk_bytes = 64;
    EXPECT_THROW(encode_files(*tokenizer_, {folder_ / "long.txt"}, options,
                              [](auto) { throw MachineError("disk full"); }),
                 MachineError);
    EXPECT_THROW(encode_files(*tokenizer_, {folder_ / "missing.txt"}, options, [](auto) {}),
                 UserError);
  }
}

TEST_F(EncodeTest, DecodeTakesAnyIdsOfTheVocabulary) {
  Ids ids;
  std::string expected;
  for (uint32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    ids.push_back(id);
    expected += tokenizer_->vocabulary().tokens[id];
  }
  EXPECT_EQ(tokenizer_->decode(ids), expected);
  EXPECT_THROW(tokenizer_->decode(Ids{0, static_cast<uint32_t>(tokenizer_->vocab_size())}),
               UserError);
  EXPECT_EQ(tokenizer_->encode(""), Ids{});
  EXPECT_FALSE(tokenizer_->token_id("no such token").has_value());
}

}  // namespace
}  // namespace flashstep
