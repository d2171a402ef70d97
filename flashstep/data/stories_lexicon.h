// The words of the built-in story corpus: classes of words that can stand in the same place.
// stories/README.md says how they are written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

struct WordClass {
  std::string name;
  std::vector<std::string> form_names;  // the base form is ""
  std::vector<std::string> forms;       // word w in form f at w * form_names.size() + f
  uint32_t first_word = 0;              // the number of its first word among those of all classes

  uint32_t size() const { return static_cast<uint32_t>(forms.size() / form_names.size()); }
  std::string_view form(uint32_t word, uint32_t form) const {
    return forms[word * form_names.size() + form];
  }
};

struct Lexicon {
  std::vector<WordClass> classes;
  uint32_t num_words = 0;

  // Index into `classes`, or -1.
  int find(std::string_view name) const;
};

// std::logic_error, naming the line, where the text breaks the rules of stories/README.md.
Lexicon parse_lexicon(std::span<const std::string_view> texts);

// The lexicon as it is written down, and the text of passages and plots (stories/README.md).
std::span<const std::string_view> lexicon_texts();
std::span<const std::string_view> book_texts();

}  // namespace flashstep
