// Special tokens ("<|endoftext|>") in text: found first, so that words and merges never touch them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

class SpecialTokens {
 public:
  struct Token {
    std::string text;  // not empty
    uint32_t id;
  };
  struct Match {
    size_t begin, end;  // in bytes
    uint32_t id;
  };

  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<Token> tokens);

  // The leftmost occurrence that begins at `from` or later; of several at one place the longest.
  std::optional<Match> find(std::string_view text, size_t from) const;

  size_t longest_bytes() const { return tokens_.empty() ? 0 : tokens_[0].text.size(); }

  // Walks over `text`: on_text(std::string_view) for what lies between special tokens (never
  // empty), on_special(id) for each of them, in order.
  template <typename OnText, typename OnSpecial>
  void split(std::string_view text, OnText&& on_text, OnSpecial&& on_special) const {
    size_t done = 0;
    while (done < text.size()) {
      const std::optional<Match> match = find(text, done);
      const size_t text_end = match ? match->begin : text.size();
      if (text_end > done) on_text(text.substr(done, text_end - done));
      if (!match) return;
      on_special(match->id);
      done = match->end;
    }
  }

 private:
  size_t next_candidate(std::string_view text, size_t from) const;

  std::vector<Token> tokens_;              // longest first
  std::array<bool, 256> is_first_byte_{};  // of any token
  std::optional<char> only_first_byte_;    // when all tokens share it
};

// Throws UserError unless the texts can be special tokens: not empty, distinct, well-formed UTF-8,
// and spelled like no ordinary token could be in a vocabulary file. `where` begins the message.
void check_special_tokens(const std::vector<std::string>& texts, const std::string& where);

}  // namespace flashstep
