// The terminal that people sit at: whether there is one, how wide it is, and lines that fit it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace flashstep {

// Whether `out` is a terminal that can redraw a line: TERM=dumb cannot.
bool can_redraw(std::FILE* out);

// Text that somebody else wrote, for `out`: without control characters where that is a terminal.
std::string shown_on(std::FILE* out, std::string_view utf8);

// Columns of the terminal behind `out`, else $COLUMNS; 0 where neither says.
size_t terminal_columns(std::FILE* out);

// Columns that UTF-8 `text` takes: one a code point, which holds for all that the program prints.
size_t cells(std::string_view text);

// `text` with every line that is wider broken at spaces. What goes on stands below the last column
// that two or more spaces opened (a table's description), else two beyond the line's indentation.
// 0 columns: as it is.
std::string wrapped(const std::string& text, size_t columns);

}  // namespace flashstep
