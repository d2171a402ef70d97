// What an answer is computed from: the tables of the results, asked for by their columns.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/document/result.h"

namespace flashstep::report {

// A table of a result, or none. Columns are named; of several with one name `nth` says which.
class TableView {
 public:
  TableView() = default;
  TableView(const Result& result, const measure::Table& table) : result_(&result), table_(&table) {}

  explicit operator bool() const { return table_ != nullptr; }
  size_t rows() const { return table_ == nullptr ? 0 : table_->rows.size(); }
  // NaN where there is no number: an empty cell, "OOM", a column or a table that is not there.
  double number(size_t row, const std::string& column, size_t nth = 0) const;
  // As it is displayed, empty cells as "".
  std::string text(size_t row, const std::string& column, size_t nth = 0) const;
  bool has(const std::string& column) const { return place(column, 0).has_value(); }

  // Rows whose cells read so.
  using Wanted = std::vector<std::pair<std::string, std::string>>;
  std::vector<size_t> where(const Wanted& wanted) const;
  std::optional<size_t> first(const Wanted& wanted) const;  // of them
  // What stands in a column, each once, in the order of the rows; empty cells left out.
  std::vector<std::string> distinct(const std::string& column) const;

  const Result& result() const { return *result_; }
  const measure::Table& table() const { return *table_; }

 private:
  std::optional<size_t> place(const std::string& column, size_t nth) const;

  const Result* result_ = nullptr;
  const measure::Table* table_ = nullptr;
};

// The results that a question may be answered from. They must outlive it.
class Evidence {
 public:
  // `years` of the question, such as "2025 2026": results of their presets come first, the latest
  // year's before the others', those of the preset quick last.
  Evidence(const std::vector<Result>& results, const std::string& years);

  // The first table of `section` that has all of these columns; remembered as used.
  TableView table(const std::string& section, const std::vector<std::string>& columns) const;
  // All of them; whoever takes one says so with use().
  std::vector<TableView> tables(const std::string& section,
                                const std::vector<std::string>& columns) const;

  void use(const TableView& view) const;

  // Names of the measurements whose tables were used.
  const std::vector<std::string>& used() const { return used_; }

 private:
  std::vector<const Result*> results_;
  mutable std::vector<std::string> used_;
};

// ---- Numbers in sentences

// "12.3", "0.0045", "1,230": three significant digits.
std::string three_digits(double value);
// "1.25 times as fast as", "only 0.80 times as fast as", "as fast as" (within 2 %).
std::string speed_words(double ratio);
std::string percent(double share, int digits = 0);             // 0.123 -> "12 %"
std::string milliseconds(double ms);                           // "12.3 ms"
std::string count_of(size_t count, const std::string& thing);  // "1 row", "3 rows"

}  // namespace flashstep::report
