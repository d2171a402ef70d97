#include "flashstep/base/terminal.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

constexpr size_t kLeastText = 20;  // columns beside an indentation that are worth keeping it for
constexpr size_t kHanging = 2;     // of what goes on from a line without columns

// Where the last column of `line` begins, in bytes: behind two or more spaces; 0 if there is none
// that leaves room for text.
size_t last_column(const std::string& line, size_t columns) {
  size_t begin = 0;
  for (size_t at = line.find_first_not_of(' '); (at = line.find("  ", at)) != std::string::npos;) {
    at = line.find_first_not_of(' ', at);
    if (at == std::string::npos || cells(line.substr(0, at)) + kLeastText > columns) break;
    begin = at;
  }
  return begin;
}

void append_wrapped(std::string& out, const std::string& line, size_t columns) {
  if (cells(line) <= columns || line.find_first_not_of(' ') == std::string::npos) {
    out += line;
    return;
  }
  size_t column = last_column(line, columns), hanging = 0;
  if (column == 0) {
    column = line.find_first_not_of(' ');
    hanging = kHanging;
  }
  if (column + kLeastText > columns) column = hanging = 0;
  out += line.substr(0, column);
  size_t used = cells(line.substr(0, column));
  const std::string indent(used + hanging, ' ');
  std::istringstream words(line.substr(column));
  std::string word;
  words >> word;
  out += word;
  used += cells(word);
  while (words >> word) {
    const bool fits = used + 1 + cells(word) <= columns;
    used = (fits ? used + 1 : indent.size()) + cells(word);
    out += fits ? " " : "\n" + indent;
    out += word;
  }
}

}  // namespace

size_t cells(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

bool can_redraw(std::FILE* out) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(out)) != 0 && (kind == nullptr || std::string_view(kind) != "dumb");
}

std::string shown_on(std::FILE* out, std::string_view utf8) {
  return ::isatty(::fileno(out)) == 1 ? without_controls(utf8) : std::string(utf8);
}

size_t terminal_columns(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* given = std::getenv("COLUMNS");
  return given == nullptr ? 0 : static_cast<size_t>(std::max(0L, std::strtol(given, nullptr, 10)));
}

std::string wrapped(const std::string& text, size_t columns) {
  if (columns == 0) return text;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    append_wrapped(out, text.substr(at, end - at), columns);
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace flashstep
