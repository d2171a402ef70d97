// The scanner against PCRE2 with the patterns. Debian's PCRE2 has Unicode 14: code points that
// it does not know yet, or files differently, are left out.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/tokenizer/char_class.h"
#include "flashstep/tokenizer/hard_text.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {
namespace {

class Regex {
 public:
  explicit Regex(const char* pattern) {
    int error;
    PCRE2_SIZE offset;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    EXPECT_NE(code_, nullptr);
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Regex() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  std::vector<std::string> find_all(const std::string& text) {
    std::vector<std::string> found;
    for (size_t at = 0; at < text.size();) {
      if (pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, match_,
                      nullptr) < 0) {
        break;
      }
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_);
      found.push_back(text.substr(range[0], range[1] - range[0]));
      at = range[1];
    }
    return found;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

constexpr const char* kGpt2 =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                              R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string utf8(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

// The code points, U+180E excepted (white space in PCRE2's \s by its own definition), that both
// know.
std::vector<uint32_t> agreed_code_points(uint32_t& assigned_but_different) {
  Regex letter(R"(\p{L})"), number(R"(\p{N})"), space(R"(\s)"), unassigned(R"(\p{Cn})");
  std::vector<uint32_t> agreed;
  assigned_but_different = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8(c);
    const CharClass theirs = !letter.find_all(text).empty()   ? CharClass::kLetter
                             : !number.find_all(text).empty() ? CharClass::kNumber
                             : !space.find_all(text).empty()  ? CharClass::kSpace
                                                              : CharClass::kOther;
    if (theirs == class_of(c)) {
      agreed.push_back(c);
    } else if (unassigned.find_all(text).empty()) {
      ++assigned_but_different;
    }
  }
  return agreed;
}

TEST(Pcre2, SameClassesAndWords) {
  uint32_t assigned_but_different;
  const std::vector<uint32_t> agreed = agreed_code_points(assigned_but_different);
  EXPECT_LE(assigned_but_different, 1u) << "only U+180E may differ among assigned code points";
  EXPECT_GT(agreed.size(), 0x110000u - 2048 - 30'000);
  Regex gpt2(kGpt2), gpt4(kGpt4);
  WordScanner scan_gpt2, scan_gpt4(WordPattern::kGpt4);
  std::mt19937_64 random(1);
  for (int round = 0; round < 5'000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) {
      const std::string& piece = hard_pieces()[random() % hard_pieces().size()];
      // Half of the code points from the blocks that scripts share, half from anywhere.
      text += random() % 2 == 0 && is_utf8(piece) ? piece
              : random() % 2 == 0                 ? utf8(agreed[random() % 0x3000])
                                                  : utf8(agreed[random() % agreed.size()]);
    }
    for (auto [scanner, pattern] : {std::pair(&scan_gpt2, &gpt2), std::pair(&scan_gpt4, &gpt4)}) {
      std::vector<std::string> words;
      scanner->for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
      ASSERT_EQ(words, pattern->find_all(text)) << ::testing::PrintToString(text);
    }
  }
}

}  // namespace
}  // namespace flashstep
