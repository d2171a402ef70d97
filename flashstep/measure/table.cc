#include "flashstep/measure/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/utf8.h"

namespace flashstep::measure {
namespace {

std::string printf_number(const char* format, int digits, double value) {
  char buffer[512];  // the longest "%.*f" of a double has 309 digits before the point
  std::snprintf(buffer, sizeof buffer, format, std::clamp(digits, 0, 17), value);
  return buffer;
}

// "-1234567.891" -> "-1,234,567.891"
std::string group_thousands(const std::string& number) {
  const size_t first = number.find_first_of("0123456789");
  size_t end = number.find('.');
  if (end == std::string::npos) end = number.size();
  std::string grouped = number.substr(0, first);
  for (size_t i = first; i < end; ++i) {
    if (i > first && (end - i) % 3 == 0) grouped += ',';
    grouped += number[i];
  }
  return grouped + number.substr(end);
}

std::string significant(double value, int digits) {
  digits = std::max(digits, 1);
  if (value == 0) return "0";
  // Rounding first: 9.996 with three digits is 10.0, one power of ten higher.
  const double rounded = std::strtod(printf_number("%.*e", digits - 1, value).c_str(), nullptr);
  const int exponent = static_cast<int>(std::floor(std::log10(std::abs(rounded))));
  if (exponent < -5 || exponent > 12) return printf_number("%.*e", digits - 1, value);
  return group_thousands(printf_number("%.*f", std::max(digits - 1 - exponent, 0), rounded));
}

std::string display_number(double value, const NumberFormat& format) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  switch (format.style) {
    case NumberFormat::Style::kFixed:
      if (std::abs(value) >= 1e15) return printf_number("%.*e", format.digits, value);
      return group_thousands(printf_number("%.*f", format.digits, value));
    case NumberFormat::Style::kSignificant:
      return significant(value, format.digits);
    case NumberFormat::Style::kScientific:
      return printf_number("%.*e", format.digits, value);
  }
  return "";
}

std::string padded(const std::string& text, size_t width, Align align) {
  const size_t used = display_width(text);
  const std::string space(width > used ? width - used : 0, ' ');
  return align == Align::kLeft ? text + space : space + text;
}

// One line of fields between separators, without the blanks at its end that a left-aligned last
// column would leave.
std::string line_of(const std::vector<std::string>& fields, const std::vector<size_t>& widths,
                    const std::vector<Column>& columns) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += "  ";
    line += padded(fields[i], widths[i], columns[i].align);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// Line breaks would tear a row apart.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return text;
}

std::vector<std::vector<std::string>> displayed_rows(const Table& table) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : table.rows) {
    auto& fields = rows.emplace_back();
    for (size_t i = 0; i < row.size(); ++i)
      fields.push_back(one_line(display(row[i], table.columns[i].format)));
  }
  return rows;
}

std::vector<size_t> column_widths(const std::vector<std::vector<std::string>>& lines,
                                  size_t count) {
  std::vector<size_t> widths(count, 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], display_width(line[i]));
  return widths;
}

std::string markdown_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '<' || c == '*' || c == '_' || c == '`') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Cell::Cell() noexcept = default;
Cell::Cell(const Cell&) = default;
Cell::Cell(Cell&&) noexcept = default;
Cell& Cell::operator=(const Cell&) = default;
Cell& Cell::operator=(Cell&&) noexcept = default;
Cell::~Cell() = default;

double Cell::number() const {
  if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
  const auto* number = std::get_if<double>(&value_);
  return number == nullptr ? NAN : *number;
}

Column text_column(std::string name) { return {std::move(name), "", Align::kLeft, {}}; }

Column integer_column(std::string name, std::string unit) {
  return number_column(std::move(name), std::move(unit), 0);
}

Column number_column(std::string name, std::string unit, int digits) {
  return {std::move(name), std::move(unit), Align::kRight, {NumberFormat::Style::kFixed, digits}};
}

void Table::add_row(std::vector<Cell> cells) {
  require(cells.size() == columns.size(), "[table] expected a row of ", columns.size(),
          " cells in \"", title, "\", got ", cells.size());
  rows.push_back(std::move(cells));
}

std::string display(const Cell& cell, const NumberFormat& format) {
  if (const auto* text = std::get_if<std::string>(&cell.value())) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell.value())) return with_commas(*whole);
  if (const auto* number = std::get_if<double>(&cell.value()))
    return display_number(*number, format);
  return "-";
}

std::string to_text(const Table& table, size_t note_columns) {
  std::vector<std::vector<std::string>> lines(2);
  bool any_unit = false;
  for (const Column& column : table.columns) {
    lines[0].push_back(one_line(column.name));
    lines[1].push_back(one_line(column.unit));
    any_unit |= !column.unit.empty();
  }
  for (auto& row : displayed_rows(table)) lines.push_back(std::move(row));
  const std::vector<size_t> widths = column_widths(lines, table.columns.size());

  std::string text = table.title.empty() ? "" : one_line(table.title) + "\n";
  text += line_of(lines[0], widths, table.columns);
  if (any_unit) text += line_of(lines[1], widths, table.columns);
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  text += line_of(rule, widths, table.columns);
  for (size_t i = 2; i < lines.size(); ++i) text += line_of(lines[i], widths, table.columns);
  for (const std::string& note : table.notes) text += wrapped(note, note_columns) + "\n";
  return text;
}

std::string to_markdown(const Table& table) {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : table.columns) {
    const std::string unit = column.unit.empty() ? "" : " (" + column.unit + ")";
    lines[0].push_back(markdown_escaped(one_line(column.name + unit)));
  }
  for (auto& row : displayed_rows(table)) {
    for (std::string& field : row) field = markdown_escaped(field);
    lines.push_back(std::move(row));
  }
  std::vector<size_t> widths = column_widths(lines, table.columns.size());
  for (size_t& width : widths) width = std::max<size_t>(width, 3);

  std::string text;
  if (!table.title.empty()) text += "**" + markdown_escaped(one_line(table.title)) + "**\n\n";
  for (size_t row = 0; row < lines.size(); ++row) {
    for (size_t i = 0; i < widths.size(); ++i)
      text += "| " + padded(lines[row][i], widths[i], table.columns[i].align) + " ";
    text += "|\n";
    if (row > 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      const bool right = table.columns[i].align == Align::kRight;
      text += "| " + std::string(widths[i] - (right ? 1 : 0), '-') + (right ? ": " : " ");
    }
    text += "|\n";
  }
  for (const std::string& note : table.notes) text += "\n" + note + "\n";
  return text;
}

}  // namespace flashstep::measure
