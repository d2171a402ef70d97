// Reads many stories as a strict proofreader would.
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/data/stories.h"
#include "flashstep/data/stories_inflect.h"

namespace flashstep {
namespace {

constexpr uint64_t kStoriesRead = 20'000;

template <typename Check>
void for_each_story(Check check) {
  int failures = 0;
  for (uint64_t index = 0; index < kStoriesRead && failures < 5; ++index) {
    const std::string text = story(11, index);
    const std::string complaint = check(text);
    if (complaint.empty()) continue;
    ++failures;
    ADD_FAILURE() << complaint << " in story " << index << ":\n" << text;
  }
}

std::vector<std::string> paragraphs(const std::string& text) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t end; (end = text.find("\n\n", start)) != std::string::npos; start = end + 2) {
    parts.push_back(text.substr(start, end - start));
  }
  parts.push_back(text.substr(start));
  return parts;
}

struct Sentence {
  std::string text;
  bool goes_on;  // "Stop!" she cried.   The speech ended, the sentence did not.
};

// Cuts after . ! ? (and a closing quotation mark) before a space; "Mr." and "Mrs." end nothing.
std::vector<Sentence> sentences_of(const std::string& paragraph) {
  std::vector<Sentence> parts;
  size_t start = 0;
  bool goes_on = false;
  for (size_t i = 0; i < paragraph.size(); ++i) {
    if (std::string_view(".!?").find(paragraph[i]) == std::string_view::npos) continue;
    const std::string before = paragraph.substr(0, i);
    if (before.ends_with("Mr") || before.ends_with("Mrs")) continue;
    size_t end = i + 1;
    const bool speech_ends = end < paragraph.size() && paragraph[end] == '"';
    end += speech_ends;
    if (end < paragraph.size() && paragraph[end] != ' ') continue;
    parts.push_back({paragraph.substr(start, end - start), goes_on});
    goes_on = speech_ends && paragraph[i] != '.';
    start = end + 1;
  }
  if (start < paragraph.size()) parts.push_back({paragraph.substr(start), goes_on});
  return parts;
}

TEST(Language, CharactersAndSpaces) {
  for_each_story([](const std::string& text) -> std::string {
    for (char c : text) {
      if (c != '\n' && (c < ' ' || c > '~')) return "a character that is not printable ASCII";
      if (std::string_view("{}$@|/<>_\\").find(c) != std::string_view::npos) return "markup";
    }
    for (std::string_view wrong : {"  ", " \n", "\n ", "\n\n\n", " .", " ,", " !", " ?", "..", ",,",
                                   ",.", ".,", "!.", "?.", "!,\"", "\" \"", "( ", "''"}) {
      if (contains(text, wrong)) return str("\"", wrong, "\"");
    }
    if (std::isspace(static_cast<unsigned char>(text.front())) || text.back() == '\n')
      return "space at an end";
    return "";
  });
}

TEST(Language, Lengths) {
  for_each_story([](const std::string& text) -> std::string {
    const size_t words = words_of(text).size();
    if (words < 60) return "fewer than 60 words";
    if (words > 350) return "more than 350 words";
    return "";
  });
}

TEST(Language, Articles) {
  for_each_story([](const std::string& text) -> std::string {
    for (std::string_view article : {" a ", " an ", "A ", "An "}) {
      for (size_t at = 0; (at = text.find(article, at)) != std::string::npos;
           at += article.size()) {
        if (at > 0 && article[0] == 'A' && std::isalpha(static_cast<unsigned char>(text[at - 1])))
          continue;
        const bool an = article.find('n') != std::string_view::npos;
        const std::string next = text.substr(at + article.size(), 20);
        if (takes_an(next) != an) return str("\"", article, next, "\"");
      }
    }
    for (std::string_view wrong :
         {" a the ", " the a ", " a a ", " the the ", " a an ", " a his ", " a her "}) {
      if (contains(text, wrong)) return std::string(wrong);
    }
    return "";
  });
}

TEST(Language, QuotationMarksAreBalancedInEachParagraph) {
  for_each_story([](const std::string& text) -> std::string {
    for (const std::string& paragraph : paragraphs(text)) {
      bool open = false;
      for (size_t i = 0; i < paragraph.size(); ++i) {
        if (paragraph[i] != '"') continue;
        const char before = i > 0 ? paragraph[i - 1] : ' ';
        const char after = i + 1 < paragraph.size() ? paragraph[i + 1] : ' ';
        if (!open && (before != ' ' || after == ' ')) return "badly opened speech";
        if (open &&
            (std::string_view(".,!?").find(before) == std::string_view::npos || after != ' ')) {
          return "badly closed speech";
        }
        open = !open;
      }
      if (open) return "speech without an end";
    }
    return "";
  });
}

TEST(Language, SentencesBeginWithCapitalsAndEnd) {
  for_each_story([](const std::string& text) -> std::string {
    for (const std::string& paragraph : paragraphs(text)) {
      const char last =
          paragraph.back() == '"' ? paragraph[paragraph.size() - 2] : paragraph.back();
      if (std::string_view(".!?").find(last) == std::string_view::npos)
        return "a paragraph without an end";
      for (const auto& [sentence, goes_on] : sentences_of(paragraph)) {
        const char first = sentence[sentence[0] == '"' ? 1 : 0];
        if (std::isupper(static_cast<unsigned char>(first)) || goes_on) continue;
        return str("small letter at the beginning of: ", sentence);
      }
    }
    return "";
  });
}

TEST(Language, NoSentenceTwice) {
  for_each_story([](const std::string& text) -> std::string {
    std::set<std::string> seen;
    for (const std::string& paragraph : paragraphs(text)) {
      for (const auto& [sentence, goes_on] : sentences_of(paragraph)) {
        if (sentence.size() < 30) continue;  // short calls may come back
        if (!seen.insert(sentence).second) return str("twice: ", sentence);
      }
    }
    return "";
  });
}

TEST(Language, NoWordTwiceInARow) {
  for_each_story([](const std::string& text) -> std::string {
    std::string last, word;
    for (const char c : text + ".") {
      if (std::isalpha(static_cast<unsigned char>(c)) || c == '\'' || c == '-') {
        word += c;
        continue;
      }
      if (!word.empty() && word == last) return str("\"", word, " ", word, "\"");
      last = c == ' ' ? word : "";  // a mark parts them
      word.clear();
    }
    return "";
  });
}

}  // namespace
}  // namespace flashstep
