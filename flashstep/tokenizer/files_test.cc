#include "flashstep/detail/files.h"

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/full_disk.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/hard_text.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("files_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::mt19937_64 random(1);
    write_file(folder_ / "text.txt", hard_text(random, 2'000));
    BpeOptions options;
    options.vocab_size = 400;
    options.special_tokens = {"<|end|>", "<|\"quoted\\ \n€|>", "\n\n"};
    vocabulary_ = train_bpe({folder_ / "text.txt"}, options).vocabulary();
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  Vocabulary vocabulary_;
};

void expect_same(const Vocabulary& a, const Vocabulary& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.merges, b.merges);
  EXPECT_EQ(a.special_ids, b.special_ids);
  EXPECT_EQ(a, b);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The message of the UserError that `run` throws, empty if it throws none.
std::string complaint(const std::function<void()>& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ByteAlphabet, SpellsAllBytes) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(unspell(spell(bytes)), bytes);
  EXPECT_EQ(spell(" a\n\xff"), "ĠaĊÿ");
  EXPECT_EQ(spell(std::string(1, '\0')), "Ā");
  EXPECT_EQ(spell("\xad"), "Ń");
  EXPECT_FALSE(unspell("a b").has_value());
  EXPECT_FALSE(unspell("\xff").has_value());
  EXPECT_FALSE(unspell("ń").has_value());
}

TEST_F(FilesTest, EachFormatRoundTrips) {
  expect_same(parse_gpt2(vocab_json(vocabulary_), merges_text(vocabulary_), "x"), vocabulary_);
  expect_same(parse_tokenizer_json(tokenizer_json(vocabulary_), "x"), vocabulary_);
}

TEST_F(FilesTest, LoadsFoldersAndSingleFiles) {
  const Tokenizer tokenizer(vocabulary_);
  tokenizer.save(folder_ / "saved");
  for (const char* name : {"", "tokenizer.json", "vocab.json", "merges.txt"}) {
    EXPECT_EQ(Tokenizer::load(folder_ / "saved" / name).fingerprint(), tokenizer.fingerprint())
        << name;
  }
  fs::remove(folder_ / "saved" / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(folder_ / "saved").fingerprint(), tokenizer.fingerprint());
  fs::remove(folder_ / "saved" / "merges.txt");
  EXPECT_THROW(Tokenizer::load(folder_ / "saved"), UserError);
  fs::remove(folder_ / "saved" / "vocab.json");
  EXPECT_THROW(Tokenizer::load(folder_ / "saved"), UserError);
  EXPECT_THROW(Tokenizer::load(folder_ / "missing"), UserError);
}

// Of a tokenizer that replaces another one, where the last file finds no room.
TEST_F(FilesTest, AFullDiskLeavesTheTokenizerBefore) {
  Vocabulary small = vocabulary_;
  for (const uint32_t id : small.special_ids) ASSERT_GE(id, small.tokens.size() - 3);
  small.tokens.resize(small.tokens.size() - 3);
  small.special_ids.clear();
  write_vocabulary(small, folder_ / "saved");
  const size_t most = tokenizer_json(vocabulary_).size() - 1;
  ASSERT_GT(most, vocab_json(vocabulary_).size());
  {
    const testing::FullDisk full(most);
    EXPECT_THROW(write_vocabulary(vocabulary_, folder_ / "saved"), MachineError);
    EXPECT_THROW(write_vocabulary(vocabulary_, folder_ / "new"), MachineError);
  }
  EXPECT_EQ(read_file(folder_ / "saved" / "vocab.json"), vocab_json(small));
  EXPECT_EQ(read_file(folder_ / "saved" / "merges.txt"), merges_text(small));
  EXPECT_EQ(read_file(folder_ / "saved" / "tokenizer.json"), tokenizer_json(small));
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(FilesTest, ReadsTheOlderSpellingOfMerges) {
  std::string json = tokenizer_json(vocabulary_);
  const auto [left, right] = vocabulary_.merges[0];
  const std::string a = spell(vocabulary_.tokens[left]), b = spell(vocabulary_.tokens[right]);
  json = replaced(json, "[\"" + a + "\", \"" + b + "\"]", "\"" + a + " " + b + "\"");
  expect_same(parse_tokenizer_json(json, "x"), vocabulary_);
}

TEST_F(FilesTest, SplitDigitsAreAnotherTokenization) {
  Vocabulary split = vocabulary_;
  split.split_digits = true;
  const std::string json = tokenizer_json(split);
  expect_same(parse_tokenizer_json(json, "x"), split);
  EXPECT_NE(Tokenizer(split).fingerprint(), Tokenizer(vocabulary_).fingerprint());
  const std::string digits = "{\"type\": \"Digits\", \"individual_digits\": true}, ";
  for (const std::string& other :
       {std::string(), digits + digits, replaced(digits, "true", "false"),
        replaced(digits, "Digits", "Punctuation")}) {
    const std::string message =
        complaint([&] { parse_tokenizer_json(replaced(json, digits, other), "x"); });
    EXPECT_NE(message.find("[x] expected the pre_tokenizer ByteLevel, or a Sequence of Digits"),
              std::string::npos)
        << message;
  }
}

TEST_F(FilesTest, ReadsAndWritesWhatLlama3Has) {
  Vocabulary vocabulary = vocabulary_;
  vocabulary.pattern = WordPattern::kGpt4;
  vocabulary.ignore_merges = true;
  vocabulary.bos_id = vocabulary.special_ids.front();
  const std::string json = tokenizer_json(vocabulary);
  expect_same(parse_tokenizer_json(json, "x"), vocabulary);
  Vocabulary qwen2 = vocabulary;
  qwen2.split_digits = true;
  expect_same(parse_tokenizer_json(tokenizer_json(qwen2), "x"), qwen2);
  EXPECT_NE(json.find(R"("pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?)"
                      R"(\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|)"
                      R"(\\s+(?!\\S)|\\s+"}, "behavior": "Isolated")"),
            std::string::npos)
      << json.substr(0, 3000);
  std::vector<std::string> fingerprints;
  for (const auto& change : std::vector<std::function<void(Vocabulary&)>>{
           [](Vocabulary&) {}, [](Vocabulary& v) { v.pattern = WordPattern::kGpt2; },
           [](Vocabulary& v) { v.ignore_merges = false; },
           [](Vocabulary& v) { v.split_digits = true; }}) {
    Vocabulary changed = vocabulary;
    change(changed);
    fingerprints.push_back(Tokenizer(changed).fingerprint());
    EXPECT_EQ(std::count(fingerprints.begin(), fingerprints.end(), fingerprints.back()), 1);
  }
  const struct {
    std::string from, to, named;
  } kCases[] = {
      {"{1,3}", "{1,2}", "GPT-4's words"},
      {"\"Isolated\"", "\"Removed\"", "GPT-4's words"},
      {"\"invert\": false", "\"invert\": true", "GPT-4's words"},
      {"\"use_regex\": false", "\"use_regex\": true", "without use_regex"},
      {"\"single\": [", "\"single\": [{\"Sequence\": {\"id\": \"A\"}}, ", "TemplateProcessing"},
      {"\"single\": ", "\"single\": 1, \"other\": ", "TemplateProcessing"},
      {"\"ids\": [", "\"ids\": [-1, ", "TemplateProcessing"},
      {R"([{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true})",
       R"([{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}},
            {"Sequence": {"id": "A"}}], "special_tokens": {"a": {"ids": [1]}}})",
       "expected one TemplateProcessing, got two"},
      {"\"ids\": [", "\"ids\": [], \"other\": [", "TemplateProcessing"},
      {"\"ids\": [", "\"ids\": [0], \"other\": [", "special token as bos_id"},
      {"\"processors\": [", "\"processors\": [{\"type\": \"Sequence\"}], \"other\": [", "Sequence"},
      {"\"ignore_merges\": true", "\"ignore_merges\": 1", "ignore_merges"},
  };
  for (const auto& change : kCases) {
    const std::string changed = replaced(json, change.from, change.to);
    const std::string message = complaint([&] { parse_tokenizer_json(changed, "file.json"); });
    EXPECT_NE(message.find(change.named), std::string::npos) << change.to << ": " << message;
    EXPECT_NE(message.find("file.json"), std::string::npos) << message;
  }
}

TEST_F(FilesTest, AWordThatIsATokenIgnoresMerges) {
  const std::string json = R"({"model": {"ignore_merges": true, "merges": [["a", "b"]],
      "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4, "!": 5}},
      "pre_tokenizer": {"type": "ByteLevel"}})";
  const Tokenizer tokenizer(parse_tokenizer_json(json, "x"));
  EXPECT_EQ(tokenizer.encode("abc!abcc"), (std::vector<uint32_t>{4, 5, 2, 3, 3}));
  const Tokenizer merged(parse_tokenizer_json(replaced(json, "true", "false"), "x"));
  EXPECT_EQ(merged.encode("abc"), (std::vector<uint32_t>{2, 3}));
}

// tokenizers leaves such bytes out, and merges what stands around them.
TEST_F(FilesTest, BytesWithoutATokenAreLeftOut) {
  const std::string json = R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "<|end|>": 3},
      "merges": [["a", "b"]]}, "pre_tokenizer": {"type": "ByteLevel"},
      "added_tokens": [{"id": 3, "content": "<|end|>"}]})";
  const Vocabulary vocabulary = parse_tokenizer_json(json, "x");
  expect_same(parse_tokenizer_json(tokenizer_json(vocabulary), "x"), vocabulary);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.missing_bytes(), 254);
  EXPECT_EQ(Tokenizer(vocabulary_).missing_bytes(), 0);
  EXPECT_EQ(tokenizer.encode("axb\xff<|end|> \n"), (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(tokenizer.encode(std::string(300, 'x') + "ba"), (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(complaint([&] {
              parse_tokenizer_json(replaced(json, "{\"vocab", "{\"unk_token\": \"a\", \"vocab"),
                                   "x");
            }),
            "[x] expected a token for each of the 256 bytes, or no unk_token, got some bytes "
            "without one, and \"a\"");
  Vocabulary whole = vocabulary;
  whole.lacks_bytes = false;
  EXPECT_NE(complaint([&] { Tokenizer{whole}; }).find("got none for byte 0"), std::string::npos);
}

TEST_F(FilesTest, RefusesByNameWhatIsNotThisTokenization) {
  const std::string json = tokenizer_json(vocabulary_);
  const std::string pre =
      "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false";
  const struct {
    std::string from, to, named;
  } kCases[] = {
      {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "WordPiece"},
      {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "Unigram"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "NFC"},
      {pre, replaced(pre, "ByteLevel", "Metaspace"), "Metaspace"},
      {pre, replaced(pre, "false", "true"), "add_prefix_space"},
      {"\"use_regex\": true", "\"use_regex\": false", "use_regex"},
      {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}", "truncation"},
      {"\"padding\": null", "\"padding\": {\"pad_id\": 0}", "padding"},
      {"\"byte_fallback\": false", "\"byte_fallback\": true", "byte_fallback"},
      {"\"dropout\": null", "\"dropout\": 0.1", "dropout"},
      {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix"},
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
       "continuing_subword_prefix"},
      {"\"lstrip\": false", "\"lstrip\": true", "lstrip"},
      {"\"post_processor\": {\"type\": \"ByteLevel\"",
       "\"post_processor\": {\"type\": \"TemplateProcessing\"", "TemplateProcessing"},
  };
  for (const auto& change : kCases) {
    const std::string changed = replaced(json, change.from, change.to);
    const std::string message = complaint([&] { parse_tokenizer_json(changed, "file.json"); });
    EXPECT_NE(message.find(change.named), std::string::npos) << change.to << ": " << message;
    EXPECT_NE(message.find("file.json"), std::string::npos) << message;
  }
  const std::string more = json + std::string(1, '\0') + "more";
  EXPECT_EQ(complaint([&] { parse_tokenizer_json(more, "file.json"); }),
            "[file.json] expected JSON, got a zero byte");
}

// tokenizers looks for those that are "normalized" in what the others leave: of "<ab>" that is
// "<a".
TEST_F(FilesTest, RefusesAddedTokensThatAreFoundInAnotherOrder) {
  BpeOptions options;
  options.vocab_size = 270;
  options.special_tokens = {"<ab", "b>"};
  const Vocabulary vocabulary = train_bpe({folder_ / "text.txt"}, options).vocabulary();
  const auto with_normalized = [&](const std::string& token) {
    const std::string rest = "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, ";
    return replaced(tokenizer_json(vocabulary), token + rest + "\"normalized\": false",
                    token + rest + "\"normalized\": true");
  };
  expect_same(parse_tokenizer_json(with_normalized("b>"), "x"), vocabulary);
  EXPECT_EQ(complaint([&] { parse_tokenizer_json(with_normalized("<ab"), "x"); }),
            "[x] expected added_tokens of which none that is \"normalized\" overlaps another, got "
            "\"<ab\" and \"b>\"");
}

TEST_F(FilesTest, RefusesDamage) {
  const std::string json = tokenizer_json(vocabulary_), vocab = vocab_json(vocabulary_),
                    merges = merges_text(vocabulary_);
  for (const std::string& text : std::vector<std::string>{
           "", "{", "[]", "null", "\xff", json.substr(0, json.size() / 2), "{\"model\": 1}",
           replaced(json, "\"!\": 0", "\"!\": 4294967295"), replaced(json, "\"!\": 0", "\"!\": -1"),
           replaced(json, "\"!\": 0", "\"!\": 1"), replaced(json, "\"!\": 0", "\"!\": 1.5"),
           replaced(json, "\"!\": 0", "\"not a byte\": 0"), replaced(json, "\"id\": ", "\"id\": 9"),
           replaced(json, "\"merges\": [", "\"merges\": [[\"q\", \"\"],"),
           replaced(json, "\"merges\": [", "\"merges\": [[\"q\"],"),
           replaced(json, "\"merges\": [", "\"merges\": [[\"nowhere\", \"q\"],"),
           replaced(json, "\"merges\": [", "\"merges\": [[\"~\", \"~\"],"),
           replaced(json, "\"merges\": [", "\"merges\": {}, \"x\": ["),
           std::string(100'000, '[')}) {
    const std::string message = complaint([&] { parse_tokenizer_json(text, "x"); });
    EXPECT_NE(message, "") << text.substr(0, 200);
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
  EXPECT_NE(
      complaint([&] { parse_tokenizer_json("{\n  1", "x"); }).find("got parse error at line 2"),
      std::string::npos);
  for (const auto& [v, m] : std::vector<std::pair<std::string, std::string>>{
           {"", merges},
           {"[]", merges},
           {vocab, merges + "a b c\n"},
           {vocab, merges + "ab\n"},
           {vocab, merges + "~ ~\n"},
           {vocab, merges + "nowhere a\n"},
           {replaced(vocab, "\"!\": 0", "\"!\": 99999999"), merges}}) {
    EXPECT_NE(complaint([&] { parse_gpt2(v, m, "x"); }), "") << v.substr(0, 100);
  }
  EXPECT_NE(
      complaint([&] { parse_gpt2(vocab, "#version: 0.2\n\nab\n", "x"); }).find("in line 3 of"),
      std::string::npos);
  const std::string first_merge = merges.substr(14, merges.find('\n', 14) - 13);
  EXPECT_NE(complaint([&] { parse_gpt2(vocab, merges + first_merge, "x"); }), "");
}

TEST_F(FilesTest, MergesOfAnotherVocabularyAreNamed) {
  // Two tokens that no merge makes.
  const std::string vocab =
      replaced(vocab_json(vocabulary_), "\"!\": 0", "\"~Ġ~Ġ~\": 400, \"Ġ~Ġ~Ġ\": 401, \"!\": 0");
  const std::string message =
      complaint([&] { parse_gpt2(vocab, merges_text(vocabulary_), "a/vocab.json"); });
  for (const char* words : {"[a/vocab.json]", "2 tokens that no merge makes", "\"~Ġ~Ġ~\"",
                            "vocab.json and merges.txt do not belong together"}) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  // A text that is spelled as it stands may be a special token.
  const Vocabulary with_special =
      parse_gpt2(replaced(vocab_json(vocabulary_), "\"!\": 0", "\"<|pad|>\": 400, \"!\": 0"),
                 merges_text(vocabulary_), "x");
  EXPECT_EQ(with_special.special_ids.back(), 400u);
}

// Any change of a byte is either refused with a UserError or gives a vocabulary that holds
// together.
TEST_F(FilesTest, SurvivesRandomDamage) {
  const std::string json = tokenizer_json(vocabulary_), vocab = vocab_json(vocabulary_),
                    merges = merges_text(vocabulary_);
  std::mt19937_64 random(2);
  const auto damage = [&](std::string text) {
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      text[random() % text.size()] =
          static_cast<char>(random() % 4 == 0 ? random() : "0\"[]{},: "[random() % 9]);
    }
    return random() % 4 == 0 ? text.substr(0, random() % text.size()) : text;
  };
  for (int round = 0; round < 1'000; ++round) {
    complaint([&] { Tokenizer(parse_tokenizer_json(damage(json), "x")); });
    complaint([&] { Tokenizer(parse_gpt2(damage(vocab), damage(merges), "x")); });
  }
}

}  // namespace
}  // namespace flashstep
