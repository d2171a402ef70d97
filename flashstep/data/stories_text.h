// Small helpers for the two little languages of the story corpus (stories/README.md).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/base/text.h"

namespace flashstep {

inline std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// The parts between separators, trimmed; empty parts stay.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != separator) continue;
    parts.push_back(trim(text.substr(start, i - start)));
    start = i + 1;
  }
  return parts;
}

// The texts are part of the program: a mistake in them is a mistake of ours, found by the first
// test.
template <typename... Parts>
void check_text(bool condition, const Parts&... parts) {
  if (!condition) throw std::logic_error(str("[stories] ", parts...));
}

}  // namespace flashstep
