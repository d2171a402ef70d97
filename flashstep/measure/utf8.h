// UTF-8 text as code points, as far as aligning columns and laying out labels needs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashstep::measure {

// The code point at `position`, which moves behind it. A malformed byte counts as U+FFFD.
char32_t next_code_point(std::string_view text, size_t& position);

void append_utf8(std::string& text, char32_t code_point);

// Cells of a terminal: one a code point, two for East Asian wide ones, none for combining marks.
size_t display_width(std::string_view text);

}  // namespace flashstep::measure
