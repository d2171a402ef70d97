// Text formatting without a format library: concatenation, joining, and numbers as people write
// them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {

// "a, b, c"
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

// `value` with `digits` after the point: fixed(3.14159, 2) == "3.14".
std::string fixed(double value, int digits);

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Up to its first line break.
std::string first_line(const std::string& text);

// Digits in groups of three: 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

// "512 B", "1.5 KiB", "3.2 MiB", "1.1 GiB" (powers of 1024).
std::string human_bytes(uint64_t bytes);

// "0.42 s", "12.3 s", "2m 05s", "1h 02m".
std::string human_seconds(double seconds);

// The candidate with the smallest edit distance to `word` (Levenshtein; the first of equals);
// empty when there is none within half of the word's length. "gpu" means "cuda", where that is one.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Bytes as text for people: well-formed UTF-8 is kept, each maximal malformed part becomes U+FFFD
// (Unicode 16, section 3.9, "substitution of maximal subparts").
std::string printable_utf8(std::string_view bytes);

// How many of the bytes to show of a text that goes on: all but a character's at its end that may
// have more.
size_t whole_characters(std::string_view bytes);

// As JSON spells it, in quotes: one line, whatever it holds.
std::string json_spelling(std::string_view text);

// UTF-8 whose control characters (U+0000 to U+001F but tabs and line breaks, U+007F to U+009F) are
// U+FFFD: what a model wrote could clear a terminal.
std::string without_controls(std::string_view utf8);

}  // namespace flashstep
