#include "flashstep/data/stories_inflect.h"

#include <gtest/gtest.h>

namespace flashstep {
namespace {

TEST(Inflect, Plurals) {
  EXPECT_EQ(plural("ball"), "balls");
  EXPECT_EQ(plural("box of nails"), "boxes of nails");
  EXPECT_EQ(plural("teddy bear"), "teddy bears");
  EXPECT_EQ(plural("pony"), "ponies");
  EXPECT_EQ(plural("toy"), "toys");
  EXPECT_EQ(plural("peach"), "peaches");
  EXPECT_EQ(plural("scarf"), "scarves");
  EXPECT_EQ(plural("goldfish"), "goldfish");
  EXPECT_EQ(plural("wooden toy mouse"), "wooden toy mice");
}

TEST(Inflect, Pasts) {
  EXPECT_EQ(past_tense("walk"), "walked");
  EXPECT_EQ(past_tense("hop over logs"), "hopped over logs");
  EXPECT_EQ(past_tense("carry"), "carried");
  EXPECT_EQ(past_tense("play tag"), "played tag");
  EXPECT_EQ(past_tense("ride a bike"), "rode a bike");
  EXPECT_EQ(past_tense("visit"), "visited");
  EXPECT_EQ(past_tense("wander"), "wandered");
  EXPECT_EQ(past_tense("dance"), "danced");
}

TEST(Inflect, Gerunds) {
  EXPECT_EQ(gerund("run home"), "running home");
  EXPECT_EQ(gerund("make"), "making");
  EXPECT_EQ(gerund("see"), "seeing");
  EXPECT_EQ(gerund("lie"), "lying");
  EXPECT_EQ(gerund("read"), "reading");
  EXPECT_EQ(gerund("begin"), "beginning");
  EXPECT_EQ(gerund("blow bubbles"), "blowing bubbles");
  EXPECT_EQ(gerund("eat"), "eating");
}

TEST(Inflect, ThirdPersons) {
  EXPECT_EQ(third_person("go home"), "goes home");
  EXPECT_EQ(third_person("catch"), "catches");
  EXPECT_EQ(third_person("fly"), "flies");
  EXPECT_EQ(third_person("have"), "has");
  EXPECT_EQ(third_person("play"), "plays");
}

TEST(Inflect, Degrees) {
  EXPECT_EQ(comparative("big"), "bigger");
  EXPECT_EQ(comparative("happy"), "happier");
  EXPECT_EQ(comparative("good"), "better");
  EXPECT_EQ(comparative("nice"), "nicer");
  EXPECT_EQ(comparative("wonderful"), "more wonderful");
  EXPECT_EQ(superlative("small"), "smallest");
  EXPECT_EQ(superlative("careful"), "most careful");
  EXPECT_EQ(superlative("gentle"), "gentlest");
  EXPECT_EQ(superlative("bad"), "worst");
}

TEST(Inflect, Articles) {
  for (const char* word : {"apple", "Orange", "old hat", "hour", "honest girl", "uncle", "elephant",
                           "unusual day", "umbrella", "unimportant thing"}) {
    EXPECT_TRUE(takes_an(word)) << word;
  }
  for (const char* word :
       {"ball", "unicorn", "useful tool", "one", "ukulele", "yellow kite", "horse", ""}) {
    EXPECT_FALSE(takes_an(word)) << word;
  }
}

}  // namespace
}  // namespace flashstep
