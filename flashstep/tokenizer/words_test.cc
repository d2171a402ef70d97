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

struct Kind {
  WordPattern pattern = WordPattern::kGpt2;
  bool split_digits = false;
};

Words scan(std::string_view text, Kind kind = {}) {
  WordScanner scanner(kind.pattern, kind.split_digits);
  return scan(scanner, text);
}

Words reference(std::string_view text, Kind kind) {
  return Pattern(text, kind.pattern, kind.split_digits).words();
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
  const Kind kind{WordPattern::kGpt2, true};
  EXPECT_EQ(scan("a1b22 \t 3   ", kind), (Words{"a", "1", "b", "2", "2", " \t ", "3", "   "}));
  EXPECT_EQ(scan("in 1984's", kind), (Words{"in", " ", "1", "9", "8", "4", "'s"}));
  EXPECT_EQ(scan("x\u3000\u3000\u0663\u00bd y", kind),
            (Words{"x", "\u3000\u3000", "\u0663", "\u00bd", " y"}));
}

TEST(Words, OfGpt4) {
  const Kind kind{WordPattern::kGpt4};
  EXPECT_EQ(scan("Hello, world's  best\n\n text", kind),
            (Words{"Hello", ",", " world", "'s", " ", " best", "\n\n", " text"}));
  EXPECT_EQ(
      scan("it'LL we'vex 'tis ''s x'lx 'S", kind),
      (Words{"it", "'LL", " we", "'ve", "x", " '", "tis", " ''", "s", " x", "'lx", " '", "S"}));
  EXPECT_EQ(scan("a1b22345678 \t 3   ", kind),
            (Words{"a", "1", "b", "223", "456", "78", " \t", " ", "3", "   "}));
  EXPECT_EQ(scan("f(x);\n\n  \n\tif (\"y\") {\r\n    return;\n}", kind),
            (Words{"f", "(x", ");\n\n", "  \n", "\tif", " (\"", "y", "\")", " {\r\n", "   ",
                   " return", ";\n", "}"}));
  EXPECT_EQ(scan("\t!a \u2014a\u2014a\u3000b \n  ", kind),
            (Words{"\t", "!a", " \u2014", "a", "\u2014a", "\u3000b", " \n", "  "}));
  EXPECT_EQ(scan("1234", {WordPattern::kGpt4, true}), (Words{"1", "2", "3", "4"}));
  EXPECT_EQ(scan("a  1", {WordPattern::kGpt4, true}), (Words{"a", " ", " ", "1"}));
}

class WordsOfPattern : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, WordsOfPattern,
                         ::testing::Values(Kind{WordPattern::kGpt2, false},
                                           Kind{WordPattern::kGpt2, true},
                                           Kind{WordPattern::kGpt4, false},
                                           Kind{WordPattern::kGpt4, true}));

TEST_P(WordsOfPattern, AgreeOnHardText) {
  std::mt19937_64 random(1);
  WordScanner scanner(GetParam().pattern, GetParam().split_digits);
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = hard_text(random, random() % 40);
    ASSERT_EQ(scan(scanner, text), reference(text, GetParam())) << ::testing::PrintToString(text);
  }
}

TEST_P(WordsOfPattern, AgreeAcrossWindows) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    const std::string text = hard_text(random, 20'000 + random() % 20'000);
    ASSERT_EQ(scan(text, GetParam()), reference(text, GetParam())) << "round " << round;
  }
}

TEST_P(WordsOfPattern, LongerThanTheWindow) {
  const size_t window = WordScanner::kWindowBytes;
  for (const size_t length : {window - 9, window - 8, window - 1, window, window + 1, 5 * window}) {
    for (const char filler : {'a', ' ', '\n', '.', '\xff', '5'}) {
      const std::string text = "x " + std::string(length, filler) + "'s y";
      ASSERT_EQ(scan(text, GetParam()), reference(text, GetParam()))
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
  ASSERT_EQ(scan(text, GetParam()), reference(text, GetParam()));
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
