// GPT-2's pattern as written, tried alternative by alternative at each place: what WordScanner must
// equal (for tests and fuzzing). With split digits, in what lies before, between and behind them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashstep/tokenizer/char_class.h"

namespace flashstep {

using Words = std::vector<std::string>;

class Pattern {
 public:
  explicit Pattern(std::string_view text, bool split_digits = false)
      : text_(text), split_digits_(split_digits) {}

  Words words() const {
    Words found;
    size_t begin = 0;  // of what no digit is in
    for (size_t at = 0; split_digits_ && at < text_.size(); at += length(at)) {
      if (class_of(decode_char(text_.substr(at)).code_point) != CharClass::kNumber) continue;
      append(found, Pattern(text_.substr(begin, at - begin)).words());
      begin = at + length(at);
      found.emplace_back(text_.substr(at, length(at)));
    }
    if (begin > 0) {
      append(found, Pattern(text_.substr(begin)).words());
      return found;
    }
    for (size_t at = 0; at < text_.size();) {
      const size_t end = match(at);
      found.emplace_back(text_.substr(at, end - at));
      at = end;
    }
    return found;
  }

 private:
  static void append(Words& words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
  }
  size_t match(size_t at) const {
    for (const char* ending : {"'s", "'d", "'m", "'t", "'ll", "'ve", "'re"}) {
      if (text_.substr(at).starts_with(ending)) return at + std::string_view(ending).size();
    }
    const size_t behind_blank = text_[at] == ' ' ? at + 1 : at;
    for (const auto char_class : {CharClass::kLetter, CharClass::kNumber, CharClass::kOther}) {
      const size_t end = run_end(behind_blank, char_class);
      if (end > behind_blank) return end;
    }
    const size_t end = run_end(at, CharClass::kSpace);
    if (end == text_.size()) return end;
    size_t last = at;  // of the run's characters
    while (last + length(last) < end) last += length(last);
    return last > at ? last : end;
  }
  uint32_t length(size_t at) const { return decode_char(text_.substr(at)).length; }
  size_t run_end(size_t at, CharClass char_class) const {
    while (at < text_.size() && class_of(decode_char(text_.substr(at)).code_point) == char_class) {
      at += length(at);
    }
    return at;
  }

  std::string_view text_;
  bool split_digits_;
};

}  // namespace flashstep
