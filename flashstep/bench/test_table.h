// For tests of tables: cells by the names of their columns, and the lines below; and of mistakes.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

inline size_t place_of(const measure::Table& table, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i)
    if (table.columns[i].name == column) return i;
  ADD_FAILURE() << "no column " << column;
  return 0;
}

inline measure::Cell cell_at(const measure::Table& table, size_t row, const std::string& column) {
  return table.rows.at(row).at(place_of(table, column));
}

// Of the first row that begins with these cells.
inline measure::Cell cell_behind(const measure::Table& table,
                                 const std::vector<measure::Cell>& begin,
                                 const std::string& column) {
  for (const auto& row : table.rows)
    if (std::equal(begin.begin(), begin.end(), row.begin())) return row[place_of(table, column)];
  ADD_FAILURE() << "no such row in " << table.title;
  return {};
}

inline double number_of(const measure::Cell& cell) {
  if (cell == measure::Cell() || cell.is_text()) ADD_FAILURE() << "no number";
  return cell.number();
}

inline double number_at(const measure::Table& table, size_t row, const std::string& column) {
  SCOPED_TRACE(column);
  return number_of(cell_at(table, row, column));
}

// As the table shows it.
inline std::string text_at(const measure::Table& table, size_t row, const std::string& column) {
  return measure::display(cell_at(table, row, column),
                          table.columns[place_of(table, column)].format);
}

// Cells of a row by their columns, as the table shows them.
inline void expect_row(const measure::Table& table, size_t row,
                       const std::vector<std::pair<std::string, std::string>>& cells) {
  for (const auto& [column, text] : cells) EXPECT_EQ(text_at(table, row, column), text) << column;
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

// One of the lines has all these texts.
inline bool some_line_has(const std::vector<std::string>& lines,
                          const std::vector<std::string>& texts) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return line.find(text) != std::string::npos;
    });
  });
}

// A function that spoils what `measure` takes well, and expects UserError.
template <typename Measure, typename Options>
auto refused_by(const Measure& measure, const Options& good) {
  return [=](void (*spoil)(Options&)) {
    Options options = good;
    spoil(options);
    EXPECT_THROW(measure(options), UserError);
  };
}

}  // namespace flashstep::tools
