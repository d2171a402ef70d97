// Characters as GPT-2's pattern sees them: UTF-8 decoding and the classes of Unicode 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flashstep {

enum class CharClass : uint8_t {
  kOther = 0,   // everything else; also each byte that is no part of well-formed UTF-8
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 3,   // \s, the Unicode property White_Space
};

// The class of a code point; kOther beyond U+10FFFF.
CharClass class_of(uint32_t code_point);

struct Char {
  uint32_t code_point;  // kMalformed for a byte that is no part of well-formed UTF-8
  uint32_t length;      // in bytes, 1 to 4
};
inline constexpr uint32_t kMalformed = 0xFFFFFFFF;

// The character at the start of `text`, which must not be empty. Overlong forms, surrogates, values
// beyond U+10FFFF and cut-off sequences are malformed: their first byte counts as a character of
// its own.
Char decode_char(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace flashstep
