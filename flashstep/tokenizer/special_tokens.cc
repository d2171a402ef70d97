#include <algorithm>
#include <cstring>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/char_class.h"

namespace flashstep {

SpecialTokens::SpecialTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const Token& a, const Token& b) { return a.text.size() > b.text.size(); });
  for (const Token& token : tokens_) {
    require(!token.text.empty(), "[tokenizer] expected special tokens that are not empty");
    is_first_byte_[static_cast<uint8_t>(token.text[0])] = true;
  }
  if (std::count(is_first_byte_.begin(), is_first_byte_.end(), true) == 1) {
    only_first_byte_ = tokens_[0].text[0];
  }
}

size_t SpecialTokens::next_candidate(std::string_view text, size_t from) const {
  if (only_first_byte_) {
    const void* found = std::memchr(text.data() + from, *only_first_byte_, text.size() - from);
    return found == nullptr ? text.size()
                            : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size() && !is_first_byte_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (; from < text.size(); ++from) {
    from = next_candidate(text, from);
    if (from == text.size()) break;
    for (const Token& token : tokens_) {
      if (text.compare(from, token.text.size(), token.text) == 0) {
        return Match{from, from + token.text.size(), token.id};
      }
    }
  }
  return std::nullopt;
}

void check_special_tokens(const std::vector<std::string>& texts, const std::string& where) {
  std::set<std::string> seen;
  for (const std::string& text : texts) {
    require(!text.empty(), "[", where, "] expected special tokens of at least a byte, got \"\"");
    require(is_utf8(text), "[", where, "] expected special tokens in UTF-8, got \"",
            printable_utf8(text), "\"");
    require(seen.insert(text).second, "[", where, "] special token \"", text, "\" was given twice");
    // A token is spelled in the byte alphabet. A text of plain ASCII spells only itself, and that
    // never becomes an ordinary token, because it is cut out of every text first; single bytes
    // always are.
    const std::optional<std::string> bytes = unspell(text);
    require(!bytes || (*bytes == text && text.size() > 1), "[", where, "] special token \"", text,
            "\" is spelled like an ordinary token in vocabulary files; expected another text, such "
            "as \"<|endoftext|>\"");
  }
}

}  // namespace flashstep
