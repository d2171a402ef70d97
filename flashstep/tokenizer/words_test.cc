#include "flashstep/tokenizer/words.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/tokenizer/char_class.h"
#include "flashstep/tokenizer/hard_text.h"
#include "flashstep/tokenizer/reference_words.h"

namespace flashstep {
namespace {

Words scan(WordScanner& scanner, std::string_view text) {
  Words words;
  scanner.for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words scan(std::string_view text, bool split_digits = false) {
  WordScanner scanner(split_digits);
  return scan(scanner, text);
}

TEST(Words, KnownExamples) {
  EXPECT_EQ(scan("Hello, world's  best\n\n text"),
            (Words{"Hello", ",", " world", "'s", " ", " best", "\n\n", " text"}));
  EXPECT_EQ(scan("it'll we'VE 'tis ''s x'lx"),
            (Words{"it", "'ll", " we", "'", "VE", " '", "tis", " ''", "s", " x", "'", "lx"}));
  EXPECT_EQ(scan("a1b22 \t 3   "), (Words{"a", "1", "b", "22", " \t", " 3", "   "}));
  EXPECT_EQ(scan("\n's\u3000\u3000x\u00a0 "),
            (Words{"\n", "'s", "\u3000", "\u3000", "x", "\u00a0 "}));
  EXPECT_EQ(scan(""), Words{});
}

TEST(Words, MalformedBytesAreNeitherLetterNumberNorSpace) {
  EXPECT_EQ(scan("a\x80\xff!b"), (Words{"a", "\x80\xff!", "b"}));
  EXPECT_EQ(scan(" \xc3"), (Words{" \xc3"}));
  EXPECT_EQ(scan("\xe5\xad\x97\xe5\xad"),
            (Words{"\xe5\xad\x97", "\xe5\xad"}));  // a letter, then a cut one
}

TEST(Words, OfSplitDigits) {
  EXPECT_EQ(scan("a1b22 \t 3   ", true), (Words{"a", "1", "b", "2", "2", " \t ", "3", "   "}));
  EXPECT_EQ(scan("in 1984's", true), (Words{"in", " ", "1", "9", "8", "4", "'s"}));
  EXPECT_EQ(scan("x\u3000\u3000\u0663\u00bd y", true),
            (Words{"x", "\u3000\u3000", "\u0663", "\u00bd", " y"}));
}

// Without and with split digits.
class WordsOfPattern : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SplitDigits, WordsOfPattern, ::testing::Bool());

TEST_P(WordsOfPattern, AgreeOnHardText) {
  std::mt19937_64 random(1);
  WordScanner scanner(GetParam());
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = hard_text(random, random() % 40);
    ASSERT_EQ(scan(scanner, text), Pattern(text, GetParam()).words())
        << ::testing::PrintToString(text);
  }
}

TEST_P(WordsOfPattern, AgreeAcrossWindows) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    const std::string text = hard_text(random, 20'000 + random() % 20'000);
    ASSERT_EQ(scan(text, GetParam()), Pattern(text, GetParam()).words()) << "round " << round;
  }
}

TEST_P(WordsOfPattern, LongerThanTheWindow) {
  const size_t window = WordScanner::kWindowBytes;
  for (const size_t length : {window - 9, window - 8, window - 1, window, window + 1, 5 * window}) {
    for (const char filler : {'a', ' ', '\n', '.', '\xff', '5'}) {
      const std::string text = "x " + std::string(length, filler) + "'s y";
      ASSERT_EQ(scan(text, GetParam()), Pattern(text, GetParam()).words())
          << length << " of " << int{filler};
    }
  }
}

TEST_P(WordsOfPattern, OfEveryCodePointInEveryNeighbourhood) {
  std::string text;
  for (uint32_t c = 0x80; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string encoded;
    if (c < 0x800) {
      encoded = {static_cast<char>(0xC0 | c >> 6)};
    } else if (c < 0x10000) {
      encoded = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F))};
    } else {
      encoded = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
                 static_cast<char>(0x80 | (c >> 6 & 0x3F))};
    }
    encoded += static_cast<char>(0x80 | (c & 0x3F));
    ASSERT_EQ(decode_char(encoded).code_point, c);
    for (const char* before : {"x", "1", "!", " ", "\n"}) text += before + encoded;
  }
  ASSERT_EQ(scan(text, GetParam()), Pattern(text, GetParam()).words());
}

TEST_P(WordsOfPattern, AreTheSameAroundACut) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 5'000; ++round) {
    const std::string text = hard_text(random, 1 + random() % 30);
    const size_t from = random() % (text.size() + 1);
    const size_t cut = find_cut(text, from);
    ASSERT_GE(cut, from);
    Words words = scan(std::string_view(text).substr(0, cut), GetParam());
    for (const std::string& word : scan(std::string_view(text).substr(cut), GetParam()))
      words.push_back(word);
    ASSERT_EQ(words, scan(text, GetParam())) << ::testing::PrintToString(text) << " cut at " << cut;
  }
}

TEST(FindCut, IsBetweenClasses) {
  EXPECT_EQ(find_cut("one two", 1), 3u);
  EXPECT_EQ(find_cut("don't", 0), 3u);
  EXPECT_EQ(find_cut("!abc", 0), 4u);
}

}  // namespace
}  // namespace flashstep
