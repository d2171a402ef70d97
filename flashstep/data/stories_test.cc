#include "flashstep/data/stories.h"

#include <filesystem>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <gtest/gtest.h>

#include "flashstep/base/hash.h"
#include "flashstep/data/corpus.h"
#include "flashstep/data/stories_book.h"
#include "flashstep/data/stories_teller.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// Stories 0, 1, ... of `seed` until they have `bytes` bytes.
std::vector<std::string> tell(uint64_t seed, size_t bytes) {
  std::vector<std::string> stories;
  for (size_t told = 0; told < bytes; told += stories.back().size()) {
    stories.push_back(story(seed, stories.size()));
  }
  return stories;
}

fs::path temporary(const std::string& name) { return fs::path(::testing::TempDir()) / name; }

TEST(Stories, SameBytesEverywhere) {
  std::string text;
  for (uint64_t index = 0; index < 2000; ++index) append_story(7, index, text);
  // Changes only when the book or the generator is meant to change; every machine must agree.
  EXPECT_EQ(hash_bytes(text), kStoriesVersion);
}

TEST(Stories, AnyStoryAloneIsTheStoryInOrder) {
  const auto in_order = tell(3, 200'000);
  for (size_t index = in_order.size(); index-- > 0;) EXPECT_EQ(story(3, index), in_order[index]);
  EXPECT_FALSE(story(3, uint64_t{1} << 60).empty());
  EXPECT_NE(story(3, 0), story(4, 0));
}

TEST(Stories, NoStoryTwice) {
  std::unordered_set<std::string> seen;
  size_t told = 0;
  for (const auto& [seed, bytes] :
       {std::pair<uint64_t, size_t>{1, 20'000'000}, {2, 5'000'000}, {0, 5'000'000}}) {
    for (std::string& text : tell(seed, bytes)) {
      EXPECT_TRUE(seen.insert(std::move(text)).second);
      ++told;
    }
  }
  EXPECT_GT(told, 20'000u);
}

TEST(Stories, RichAndKnownVocabulary) {
  const std::set<std::string> known(story_words().begin(), story_words().end());
  std::unordered_map<std::string, int> counts;
  for (const std::string& text : tell(1, 10'000'000)) {
    for (const std::string& word : words_of(text)) ++counts[word];
  }
  size_t plain = 0;
  for (const auto& [word, count] : counts) {
    EXPECT_TRUE(known.count(word)) << word;
    plain += !word.ends_with("'s");
  }
  EXPECT_GE(plain, 3000u);
  EXPECT_GE(known.size(), counts.size());
  EXPECT_LE(known.size(), counts.size() + counts.size() / 20) << "words that never occur";
}

TEST(Stories, EveryPlotIsToldAsOften) {
  StoryTeller teller(story_book());
  std::unordered_map<std::string, int> counts;
  std::string text;
  const size_t plots = story_book().plots.size();
  EXPECT_GE(plots, 40u);
  for (uint64_t index = 0; index < 400 * plots; ++index) {
    text.clear();
    teller.tell(5, index, text);
    ++counts[teller.plot().name];
  }
  EXPECT_EQ(counts.size(), plots);
  for (const auto& [plot, count] : counts) EXPECT_NEAR(count, 400, 100) << plot;  // five sigma
}

TEST(WriteStories, EndsWithTheStoryThatReachesTheSize) {
  const fs::path path = temporary("stories.txt");
  constexpr uint64_t kBytes = 3'000'000;
  uint64_t last = 0;
  write_stories(path, kBytes, 9, [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, kBytes);
    last = done;
  });
  EXPECT_EQ(last, kBytes);
  const std::string text = read_file(path);
  EXPECT_GE(text.size(), kBytes);
  const std::string end = "\n" + std::string(kDocumentEnd) + "\n";
  ASSERT_TRUE(text.ends_with(end));
  const size_t last_story = text.rfind(end, text.size() - end.size() - 1) + end.size();
  EXPECT_LT(last_story, kBytes);
  std::string expected;
  for (uint64_t index = 0; expected.size() < kBytes; ++index) expected += story(9, index) + end;
  EXPECT_EQ(text, expected);
}

TEST(WriteStories, OneByteIsOneStory) {
  const fs::path path = temporary("one_story.txt");
  write_stories(path, 1, 9);
  EXPECT_EQ(read_file(path), story(9, 0) + "\n<|endoftext|>\n");
}

TEST(WriteStories, RefusesWhatCannotBe) {
  const fs::path path = temporary("no_stories.txt");
  EXPECT_THROW(write_stories(path, 0, 1), UserError);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THROW(write_stories("/nonexistent/folder/stories.txt", 1, 1), MachineError);
  const auto stop = [](uint64_t, uint64_t) { throw std::runtime_error("stop"); };
  EXPECT_THROW(write_stories(path, 5'000'000, 1, stop), std::runtime_error);
  EXPECT_FALSE(fs::exists(path));
}

TEST(Words, LettersWithInnerApostrophes) {
  const std::vector<std::string> expected = {"don't", "stop", "mia's", "ball", "a", "b"};
  EXPECT_EQ(words_of("\"Don't stop!\" 'Mia's ball' a-b 42"), expected);
  EXPECT_TRUE(words_of("").empty());
}

Book parse(std::string_view book) {
  static constexpr std::string_view kLexicon =
      "class kin_he fields of kin\nDad | Dad's | dad\nclass kin_she fields of kin\nMom | Mom's | "
      "mom\n"
      "class toy noun\nball, kite\nclass den.animal word\nburrow\n";
  return parse_book(std::span(&kLexicon, 1), std::span(&book, 1));
}

TEST(Book, MistakesInTheTextAreNamed) {
  EXPECT_EQ(parse("plot p any\nbeat\n- {H} saw a {toy}.").plots.size(), 1u);
  for (std::string_view wrong : {
           "plot p any\nbeat\n- {H saw.",                      // unclosed
           "plot p any\nbeat\n- {nothing}",                    // no such class
           "plot p any\nbeat\n- {toy.ing}",                    // no such form
           "plot p any\nbeat\n- {$toy}",                       // no such variable
           "plot p any\nbeat\n- {@pool}",                      // no such pool
           "plot p any\nbeat\n- {den}",                        // not in the children's world
           "plot p any\nbeat\n",                               // empty beat
           "plot p nowhere\nbeat\n- a",                        // no such world
           "plot p any\n- a",                                  // variant before a beat
           "plot p any\nlet x = nothing\nbeat\n- a",           // no such class
           "pool p\nplot p any\nbeat\n- a",                    // empty pool
           "pool p\n- a\npool p\n- b\nplot q any\nbeat\n- a",  // pool twice
           "pool p\n- a",                                      // no plots
           "- a",                                              // nothing to belong to
       }) {
    EXPECT_THROW(parse(wrong), std::logic_error) << wrong;
  }
}

}  // namespace
}  // namespace flashstep
