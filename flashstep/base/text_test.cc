#include "flashstep/base/text.h"

#include <limits>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

TEST(TextTest, NumbersReadAsPeopleWriteThem) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(3ull << 30), "3.0 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
  EXPECT_EQ(human_seconds(0.417), "0.42 s");
  EXPECT_EQ(human_seconds(125), "2m 05s");
  EXPECT_EQ(human_seconds(3725), "1h 02m");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(fixed(3.14159, 2), "3.14");
  EXPECT_EQ(fixed(std::numeric_limits<double>::max(), 1).size(), 311u);
}

TEST(TextTest, NearestFindsTyposAndRefusesStrangers) {
  const std::vector<std::string> names{"d_model", "d_ff", "num_layers", "num_heads"};
  EXPECT_EQ(nearest("d_modle", names), "d_model");
  EXPECT_EQ(nearest("n_layers", names), "num_layers");
  EXPECT_EQ(nearest("zebra", names), "");
  EXPECT_EQ(nearest("gpu", {"auto", "cpu", "cuda"}), "cuda");
  EXPECT_EQ(nearest("gpu", {"cpu"}), "cpu");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(TextTest, ControlsBecomeReplacements) {
  const std::string kR = "\xEF\xBF\xBD";
  EXPECT_EQ(without_controls("a\tb\r\n\x1B[2J\a\x7F"), "a\tb\r\n" + kR + "[2J" + kR + kR);
  EXPECT_EQ(without_controls(std::string("\0", 1)), kR);
  EXPECT_EQ(without_controls("\xC2\x9B"
                             "2J\xC2\xA0\xC3\x9B"),
            kR + "2J\xC2\xA0\xC3\x9B");
}

TEST(TextTest, SpellsAsJson) {
  EXPECT_EQ(json_spelling("<|x|>"), "\"<|x|>\"");
  EXPECT_EQ(json_spelling("a\n\n\\n\""), "\"a\\n\\n\\\\n\\\"\"");
  EXPECT_EQ(json_spelling("\xFF"), "\"\xEF\xBF\xBD\"");
}

TEST(TextTest, MalformedUtf8BecomesOneReplacementPerMaximalPart) {
  const std::string kR = "\xEF\xBF\xBD";
  EXPECT_EQ(printable_utf8("caf\xC3\xA9 \xF0\x9F\x98\x80"), "caf\xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(printable_utf8("\xFF"), kR);
  EXPECT_EQ(printable_utf8("a\xC3"), "a" + kR);
  EXPECT_EQ(printable_utf8("\xC0\xAF"), kR + kR);                    // overlong
  EXPECT_EQ(printable_utf8("\xED\xA0\x80"), kR + kR + kR);           // a surrogate
  EXPECT_EQ(printable_utf8("\xF0\x9F\x98"), kR);                     // cut: one part
  EXPECT_EQ(printable_utf8("\xF0\x9F\x98z"), kR + "z");              // cut by another character
  EXPECT_EQ(printable_utf8("\xF4\x90\x80\x80"), kR + kR + kR + kR);  // beyond U+10FFFF
  EXPECT_EQ(printable_utf8("\x80\x80"), kR + kR);
  // The Unicode standard's own example (table 3-8).
  EXPECT_EQ(printable_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kR + kR + kR + kR + "A");
}

// Shown in parts, a text is what it is at once.
TEST(WholeCharacters, KeepsBackWhatMayGoOn) {
  EXPECT_EQ(whole_characters(""), 0u);
  EXPECT_EQ(whole_characters("ab"), 2u);
  EXPECT_EQ(whole_characters("a\xC3"), 1u);
  EXPECT_EQ(whole_characters("a\xC3\xA9"), 3u);
  EXPECT_EQ(whole_characters("\xF0\x9F\x98"), 0u);
  EXPECT_EQ(whole_characters("\xF0\x9F\x98\x80"), 4u);
  EXPECT_EQ(whole_characters("a\x80\x80"), 3u);
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80"), 4u);
  const std::string text = "caf\xC3\xA9 \xE2\x82 \xF0\x9F\x98\x80\xFF\xC3\xE2\x82\xAC\x80\x80z";
  std::string shown;
  size_t told = 0;
  for (size_t size = 0; size <= text.size(); ++size) {
    const std::string_view rest = std::string_view(text).substr(told, size - told);
    shown += printable_utf8(rest.substr(0, whole_characters(rest)));
    told += whole_characters(rest);
  }
  EXPECT_EQ(shown + printable_utf8(text.substr(told)), printable_utf8(text));
}

}  // namespace
}  // namespace flashstep
