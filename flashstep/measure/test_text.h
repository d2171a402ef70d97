// For tests of pictures: what is in a text.
#pragma once

#include <string>

namespace flashstep::measure {

// How often `part` stands in `text`.
inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace flashstep::measure
