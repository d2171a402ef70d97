#include "flashstep/data/stories.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "flashstep/data/corpus.h"
#include "flashstep/data/stories_book.h"
#include "flashstep/data/stories_teller.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)); }

void add_words(std::string_view text, std::set<std::string>& words) {
  for (std::string& word : words_of(text)) words.insert(std::move(word));
}

void add_form(const WordClass& word_class, uint32_t form, std::set<std::string>& words) {
  for (uint32_t word = 0; word < word_class.size(); ++word)
    add_words(word_class.form(word, form), words);
}

// The words that `program` can write; passages have no plot and no variables.
void add_words(const Book& book, const Plot* plot, const Program& program,
               std::set<std::string>& words) {
  for (const Op& op : program) {
    add_words(op.text, words);
    if (op.kind == Op::kChoice) {
      for (const Program& inner : book.choices[op.index[0]].programs)
        add_words(book, plot, inner, words);
    }
    if (op.kind != Op::kWord && op.kind != Op::kVariable) continue;
    const ByWorld classes = op.kind == Op::kWord ? op.index : plot->variables[op.index[0]].second;
    for (int world = 0; world < kNumWorlds; ++world) {
      if (classes[world] >= book.lexicon.classes.size()) continue;  // not in this world
      add_form(book.lexicon.classes[classes[world]], op.form[world], words);
    }
  }
}

std::vector<std::string> collect_words(const Book& book) {
  std::set<std::string> words = {"a",   "an",      "he",  "him",  "his",     "himself", "she",
                                 "her", "herself", "boy", "girl", "brother", "sister"};
  for (const WordClass& word_class : book.lexicon.classes) {
    const bool names = word_class.form_names.size() > 1 && word_class.form_names[1] == "of";
    if (!names && word_class.name != "critter") continue;
    for (uint32_t form = 0; form < word_class.form_names.size(); ++form)
      add_form(word_class, form, words);
  }
  for (const Variants& pool : book.pools) {
    for (const Program& program : pool.programs) add_words(book, nullptr, program, words);
  }
  for (const Plot& plot : book.plots) {
    for (const Beat& beat : plot.beats) {
      for (const Program& program : beat.variants.programs) add_words(book, &plot, program, words);
    }
  }
  return {words.begin(), words.end()};
}

}  // namespace

void append_story(uint64_t seed, uint64_t index, std::string& text) {
  thread_local StoryTeller teller(story_book());
  teller.tell(seed, index, text);
}

std::string story(uint64_t seed, uint64_t index) {
  std::string text;
  append_story(seed, index, text);
  return text;
}

void write_stories(const std::filesystem::path& path, uint64_t min_bytes, uint64_t seed,
                   const ProgressFunction& progress) {
  require(min_bytes > 0, "[stories] expected a size of at least 1 byte, got 0");
  constexpr size_t kBlockBytes = 1 << 20;  // written, and progress told, about once a MiB
  AtomicFile file(path);
  std::string block;
  for (uint64_t index = 0; file.size_bytes() + block.size() < min_bytes; ++index) {
    append_story(seed, index, block);
    block += '\n';
    block += kDocumentEnd;
    block += '\n';
    if (block.size() < kBlockBytes) continue;
    file.write(block);
    block.clear();
    if (progress) progress(std::min(file.size_bytes(), min_bytes), min_bytes);
  }
  file.write(block);
  file.commit();
  if (progress) progress(min_bytes, min_bytes);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    if (!is_letter(text[i])) {
      ++i;
      continue;
    }
    std::string word;
    for (; i < text.size(); ++i) {
      const bool inner_apostrophe =
          text[i] == '\'' && i + 1 < text.size() && is_letter(text[i + 1]);
      if (!is_letter(text[i]) && !inner_apostrophe) break;
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
    }
    words.push_back(std::move(word));
  }
  return words;
}

const std::vector<std::string>& story_words() {
  static const std::vector<std::string> sorted = collect_words(story_book());
  return sorted;
}

}  // namespace flashstep
