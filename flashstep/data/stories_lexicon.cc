#include "flashstep/data/stories_lexicon.h"

#include <algorithm>

#include "flashstep/data/stories_inflect.h"
#include "flashstep/data/stories_text.h"

namespace flashstep {
namespace {

using Inflection = std::string (*)(std::string_view);

struct Kind {
  std::string_view name;
  std::vector<std::pair<std::string, Inflection>> inflections;
};

std::string possessive(std::string_view name) { return std::string(name) + "'s"; }

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"word", {}},
      {"noun", {{"s", plural}}},
      {"verb", {{"s", third_person}, {"ed", past_tense}, {"ing", gerund}}},
      {"adjective", {{"er", comparative}, {"est", superlative}}},
      {"name", {{"of", possessive}}},
      {"fields", {}},
  };
  return all;
}

class LexiconParser {
 public:
  void parse(std::string_view text) {
    for (std::string_view line : split(text, '\n')) {
      if (line.empty()) continue;
      if (line.starts_with("class ")) {
        end_entry();
        begin_class(line);
      } else {
        check_text(kind_ != nullptr, "words before the first class: ", line);
        if (kind_->name == "fields" && !line.starts_with('|')) end_entry();
        list_.append(list_.empty() ? "" : " ").append(line);
      }
    }
    end_entry();
  }

  Lexicon finish() {
    for (WordClass& word_class : lexicon_.classes) {
      check_text(word_class.size() > 0, "class without words: ", word_class.name);
      word_class.first_word = lexicon_.num_words;
      lexicon_.num_words += word_class.size();
    }
    return std::move(lexicon_);
  }

 private:
  void begin_class(std::string_view line) {
    const auto parts = split(line, ' ');
    check_text(parts.size() >= 3, "expected \"class NAME KIND\", got ", line);
    check_text(lexicon_.find(parts[1]) < 0, "class twice: ", parts[1]);
    const auto kind = std::find_if(kinds().begin(), kinds().end(), [&](const Kind& candidate) {
      return candidate.name == parts[2];
    });
    check_text(kind != kinds().end(), "unknown kind in ", line);
    kind_ = &*kind;
    WordClass word_class{std::string(parts[1]), {""}, {}};
    for (const auto& [name, inflection] : kind_->inflections) word_class.form_names.push_back(name);
    word_class.form_names.insert(word_class.form_names.end(), parts.begin() + 3, parts.end());
    lexicon_.classes.push_back(std::move(word_class));
  }

  // An entry of a class of fields, or the whole list of another class.
  void end_entry() {
    if (list_.empty()) return;
    WordClass& word_class = lexicon_.classes.back();
    if (kind_->name == "fields") {
      const auto fields = split(list_, '|');
      check_text(fields.size() == word_class.form_names.size(), "wrong number of fields: ", list_);
      word_class.forms.insert(word_class.forms.end(), fields.begin(), fields.end());
    } else {
      for (std::string_view word : split(list_, ',')) add_word(word, word_class);
    }
    list_.clear();
  }

  void add_word(std::string_view word, WordClass& word_class) {
    check_text(!word.empty(), "empty word in class ", word_class.name);
    word_class.forms.emplace_back(word);
    for (const auto& [name, inflect] : kind_->inflections) {
      word_class.forms.push_back(inflect(word));
    }
  }

  Lexicon lexicon_;
  const Kind* kind_ = nullptr;
  std::string list_;  // the words or fields at hand, as written
};

}  // namespace

int Lexicon::find(std::string_view name) const {
  for (size_t i = 0; i < classes.size(); ++i) {
    if (classes[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

Lexicon parse_lexicon(std::span<const std::string_view> texts) {
  LexiconParser parser;
  for (std::string_view text : texts) parser.parse(text);
  return parser.finish();
}

}  // namespace flashstep
