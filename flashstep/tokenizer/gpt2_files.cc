// GPT-2's vocab.json and merges.txt.
#include <array>
#include <unordered_set>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/json_text.h"

namespace flashstep {
namespace {

// Calls use(line, number) for each line that is not empty, after the version line; numbers are of
// the file, from 1 on.
template <typename Use>
void for_each_line(std::string_view text, Use&& use) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty() && !(number == 1 && line.substr(0, 9) == "#version:")) use(line, number);
  }
}

}  // namespace

Vocabulary parse_gpt2(std::string_view vocab_json, std::string_view merges_text,
                      const std::string& source) {
  const auto spellings =
      internal::spellings_by_id(internal::parse_json(vocab_json, source), {}, source);
  const auto ids = internal::ids_by_spelling(spellings);
  Vocabulary vocabulary;
  std::unordered_set<uint32_t> made;
  for_each_line(merges_text, [&](std::string_view line, int64_t number) {
    const size_t rank = vocabulary.merges.size();
    const size_t space = line.find(' ');
    require(space != std::string_view::npos && space == line.rfind(' '), "[", source, "] expected ",
            "two tokens and a space in line ", number, " of merges.txt, got \"",
            printable_utf8(line), "\"");
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    vocabulary.merges.push_back(internal::merge_ids(ids, left, right, rank, source));
    const auto result = ids.find(std::string(left) + std::string(right));
    require(result != ids.end(), "[", source, "] merge ", rank, " makes \"", printable_utf8(left),
            printable_utf8(right), "\", which is not in the vocabulary");
    made.insert(result->second);
  });
  std::vector<uint32_t> unmade;  // and no special tokens either (check_special_tokens)
  for (uint32_t id = 0; id < spellings.size(); ++id) {
    const auto bytes = unspell(spellings[id]);
    if (bytes && (bytes->size() == 1 || made.count(id) == 1)) {
      vocabulary.tokens.push_back(*bytes);
    } else {
      if (bytes && *bytes != spellings[id]) unmade.push_back(id);
      vocabulary.tokens.push_back(spellings[id]);
      vocabulary.special_ids.push_back(id);
    }
  }
  require(unmade.empty(), "[", source, "] expected the merges that make its tokens, got ",
          unmade.size(), unmade.size() == 1 ? " token" : " tokens",
          " that no merge makes, such as \"",
          unmade.empty() ? "" : printable_utf8(spellings[unmade.front()]),
          "\": vocab.json and merges.txt do not belong together");
  check_vocabulary(vocabulary, source);
  return vocabulary;
}

std::string vocab_json(const Vocabulary& vocabulary) {
  return internal::vocab_object(vocabulary, "\n") + "\n";
}

std::string merges_text(const Vocabulary& vocabulary) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : vocabulary.merges) {
    text += spell(vocabulary.tokens[left]) + " " + spell(vocabulary.tokens[right]) + "\n";
  }
  return text;
}

}  // namespace flashstep
