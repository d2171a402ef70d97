// The patterns as written, tried alternative by alternative at each place: what WordScanner must
// equal (for tests and fuzzing). GPT-2's with split digits in what lies before, between and behind
// them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashstep/detail/bpe.h"
#include "flashstep/tokenizer/char_class.h"

namespace flashstep {

using Words = std::vector<std::string>;

class Pattern {
 public:
  explicit Pattern(std::string_view text, WordPattern pattern = WordPattern::kGpt2,
                   bool split_digits = false)
      : text_(text), is_gpt4_(pattern == WordPattern::kGpt4), split_digits_(split_digits) {}

  Words words() const {
    Words found;
    size_t begin = 0;  // of what no digit is in
    for (size_t at = 0; split_digits_ && !is_gpt4_ && at < text_.size(); at += length(at)) {
      if (!is(at, CharClass::kNumber)) continue;
      append(found, Pattern(text_.substr(begin, at - begin)).words());
      begin = at + length(at);
      found.emplace_back(text_.substr(at, length(at)));
    }
    if (begin > 0) {
      append(found, Pattern(text_.substr(begin)).words());
      return found;
    }
    for (size_t at = 0; at < text_.size();) {
      const size_t end = is_gpt4_ ? match_gpt4(at) : match_gpt2(at);
      found.emplace_back(text_.substr(at, end - at));
      at = end;
    }
    return found;
  }

 private:
  static void append(Words& words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
  }
  size_t match_gpt2(size_t at) const {
    for (const char* ending : {"'s", "'d", "'m", "'t", "'ll", "'ve", "'re"}) {
      if (text_.substr(at).starts_with(ending)) return at + std::string_view(ending).size();
    }
    const size_t behind_blank = text_[at] == ' ' ? at + 1 : at;
    for (const auto char_class : {CharClass::kLetter, CharClass::kNumber, CharClass::kOther}) {
      const size_t end = run_end(behind_blank, char_class);
      if (end > behind_blank) return end;
    }
    return match_spaces(at);
  }
  size_t match_gpt4(size_t at) const {
    for (const char* ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'\u017f"}) {
      const std::string_view wanted = ending;
      size_t i = 0;
      while (i < wanted.size() && at + i < text_.size() && lower(text_[at + i]) == wanted[i]) ++i;
      if (i == wanted.size()) return at + i;
    }
    const bool may_join =
        !is(at, CharClass::kLetter) && !is(at, CharClass::kNumber) && !ends_line(at);
    for (const size_t begin : {may_join ? at + length(at) : at, at}) {
      const size_t end = run_end(begin, CharClass::kLetter);
      if (end > begin) return end;
    }
    size_t end = run_end(at, CharClass::kNumber, split_digits_ ? 1 : 3);
    if (end > at) return end;
    const size_t behind_blank = text_[at] == ' ' ? at + 1 : at;
    end = run_end(behind_blank, CharClass::kOther);
    if (end > behind_blank) {
      while (ends_line(end)) ++end;
      return end;
    }
    for (end = run_end(at, CharClass::kSpace); end > at; --end) {  // tried from behind
      if (ends_line(end - 1)) return end;
    }
    return match_spaces(at);
  }
  size_t match_spaces(size_t at) const {
    const size_t end = run_end(at, CharClass::kSpace);
    if (end == text_.size()) return end;
    size_t last = at;  // of the run's characters
    while (last + length(last) < end) last += length(last);
    return last > at ? last : end;
  }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
  uint32_t length(size_t at) const { return decode_char(text_.substr(at)).length; }
  bool is(size_t at, CharClass char_class) const {
    return at < text_.size() && class_of(decode_char(text_.substr(at)).code_point) == char_class;
  }
  bool ends_line(size_t at) const {
    return at < text_.size() && (text_[at] == '\r' || text_[at] == '\n');
  }
  size_t run_end(size_t at, CharClass char_class, size_t longest = ~size_t{0}) const {
    for (size_t i = 0; i < longest && is(at, char_class); ++i) at += length(at);
    return at;
  }

  std::string_view text_;
  bool is_gpt4_, split_digits_;
};

}  // namespace flashstep
