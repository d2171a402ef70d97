// Who is "he", and what is blue: a story's pronouns and colours hold together.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/data/stories.h"
#include "flashstep/data/stories_teller.h"

namespace flashstep {
namespace {

constexpr uint64_t kStoriesHeard = 20'000;

// Whether `name`, one word or several, stands in `text` as whole words.
bool names(std::string_view text, std::string_view name) {
  const auto is_letter = [&](size_t i) {
    return i < text.size() && std::isalpha(static_cast<unsigned char>(text[i]));
  };
  for (size_t at = 0; (at = text.find(name, at)) != text.npos; ++at) {
    const bool begins = at == 0 || !is_letter(at - 1);
    if (begins && !is_letter(at + name.size())) return true;
  }
  return false;
}

// Cut behind every . ! and ? but those of "Mr." and "Mrs.".
std::vector<std::string> rough_sentences(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    parts.back() += c;
    if (parts.back().ends_with("Mr.") || parts.back().ends_with("Mrs.")) continue;
    if (std::string_view(".!?").find(c) != std::string_view::npos) parts.emplace_back();
  }
  return parts;
}

// Those of either gender whom pronouns can mean: [he, she].
using Known = std::array<bool, 2>;

// Who is named in the sentence: characters, and the few others to whom the book gives a gender.
void add_named(const std::string& sentence, const Cast& cast, Known& known) {
  for (const Character& character : cast) {
    for (const RoleForm form : {kName, kKind, kKin, kSibling}) {
      const std::string_view called = character.forms[form];
      if (!called.empty() && names(sentence, called)) known[character.is_she] = true;
    }
  }
  for (const char* other : {"snowman", "baker", "Somebody", "someone"})
    known[0] = known[0] || names(sentence, other);
  for (const char* other : {"mom", "mother"}) known[1] = known[1] || names(sentence, other);
}

// The genders of the sentence's pronouns; `reflexive` only of "himself" and "herself".
Known pronouns(const std::string& sentence, bool reflexive) {
  static const std::array<std::set<std::string>, 2> kPlain = {
      std::set<std::string>{"he", "him", "his"}, {"she", "her", "hers"}};
  static const std::array<std::set<std::string>, 2> kReflexive = {std::set<std::string>{"himself"},
                                                                  {"herself"}};
  Known found = {};
  for (const std::string& word : words_of(sentence)) {
    for (const size_t gender : {0, 1}) {
      found[gender] |= (reflexive ? kReflexive : kPlain)[gender].contains(word);
    }
  }
  return found;
}

// By chance all who were named so far are of one gender in many stories: a pronoun of the wrong
// character, or one that the book writes out, cannot hide for long.
TEST(Agreement, PronounsMeanSomebodyWhoWasNamed) {
  StoryTeller teller(story_book());
  std::string text;
  size_t pronouns_of_one = 0;
  for (uint64_t index = 0; index < kStoriesHeard; ++index) {
    text.clear();
    teller.tell(11, index, text);
    Known known = {};
    for (const std::string& sentence : rough_sentences(text)) {
      Known here = {};
      add_named(sentence, teller.cast(), here);
      const Known plain = pronouns(sentence, false), reflexive = pronouns(sentence, true);
      for (const size_t gender : {0, 1}) {
        known[gender] |= here[gender];
        ASSERT_TRUE(known[gender] || !(plain[gender] || reflexive[gender]))
            << "nobody is " << (gender == 1 ? "she" : "he") << " in: " << sentence << "\nstory "
            << index << ":\n"
            << text;
        ASSERT_TRUE(!reflexive[gender] || here[gender] || plain[gender])
            << "whose self in: " << sentence << "\nstory " << index << ":\n"
            << text;
      }
      pronouns_of_one += known[0] != known[1] && (plain[0] || plain[1]);
    }
  }
  EXPECT_GT(pronouns_of_one, kStoriesHeard) << "too few that could have been wrong";
}

// "a blue kite ... the red kite": what a story gives a colour keeps it.
TEST(Agreement, ThingsKeepTheirColors) {
  const Lexicon& lexicon = story_book().lexicon;
  const int number = lexicon.find("color");
  ASSERT_GE(number, 0);
  const WordClass& colors = lexicon.classes[static_cast<size_t>(number)];
  size_t colored = 0;
  for (uint64_t index = 0; index < kStoriesHeard; ++index) {
    const std::string text = story(11, index);
    std::map<size_t, std::string> color_before;  // by position: "bright red", not "red"
    for (uint32_t i = 0; i < colors.size(); ++i) {
      const std::string color = str(" ", colors.form(i, 0), " ");
      for (size_t at = 0; (at = text.find(color, at)) != text.npos; ++at) {
        std::string& longest = color_before[at + color.size()];
        if (color.size() > longest.size()) longest = color;
      }
    }
    std::map<std::string, std::set<std::string>> colors_of;
    for (const auto& [at, color] : color_before) {
      const std::vector<std::string> behind = words_of(text.substr(at, 40));
      if (!behind.empty()) colors_of[behind.front()].insert(color);
    }
    for (const auto& [thing, its_colors] : colors_of) {
      ASSERT_EQ(its_colors.size(), 1u) << thing << " in story " << index << ":\n" << text;
    }
    colored += colors_of.size();
  }
  EXPECT_GT(colored, kStoriesHeard / 4);
}

}  // namespace
}  // namespace flashstep
