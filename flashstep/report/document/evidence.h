// What an answer is computed from: rows of the tables of the results, asked for by their columns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/document/result.h"

namespace flashstep::report {

using Columns = std::vector<std::string>;
using Cells = std::vector<std::pair<std::string, std::string>>;  // column, what it reads

struct TableRow {
  const Result* result = nullptr;
  const measure::Table* table = nullptr;  // null: there is no such row
  size_t index = 0;

  explicit operator bool() const { return table != nullptr; }
  const measure::Cell* cell(const std::string& column) const;  // null without such a column
  // NaN where there is no number: an empty cell, "OOM", a column or a row that is not there.
  double number(const std::string& column) const;
  // As it is displayed, empty cells as "".
  std::string text(const std::string& column) const;
  bool reads(const Cells& cells) const;
};

// Rows of one kind of table, from one or several results.
class TableRows {
 public:
  TableRows() = default;
  explicit TableRows(std::vector<TableRow> rows) : rows_(std::move(rows)) {}

  bool empty() const { return rows_.empty(); }
  size_t size() const { return rows_.size(); }
  const TableRow& operator[](size_t i) const { return rows_[i]; }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }
  TableRow front() const { return rows_.empty() ? TableRow() : rows_.front(); }
  TableRow back() const { return rows_.empty() ? TableRow() : rows_.back(); }
  void add(const TableRow& row) { rows_.push_back(row); }

  template <typename Wanted>
  TableRows if_(const Wanted& wanted) const {
    TableRows found;
    for (const TableRow& row : rows_) {
      if (wanted(row)) found.add(row);
    }
    return found;
  }
  TableRows where(const Cells& cells) const;     // whose cells read so
  TableRows with(const Columns& columns) const;  // that have numbers in all of them
  TableRows once(const Columns& columns) const;  // the first of those that read the same there
  TableRow first(const Cells& cells) const { return where(cells).front(); }
  // Those that read the same there, in the order of the first of each.
  std::vector<TableRows> by(const Columns& columns) const;
  // What stands in a column, each once, in the order of the rows; empty cells left out.
  std::vector<std::string> distinct(const std::string& column) const;
  std::vector<double> numbers(const std::string& column) const;  // NaN left out
  TableRow least(const std::string& column) const;               // of those that have a number
  TableRow most(const std::string& column) const;
  bool has(const std::string& column) const;  // in one of the tables at least

 private:
  std::vector<TableRow> rows_;
};

// The results that a question may be answered from. They must outlive it.
class Evidence {
 public:
  // `years` whose presets are wanted, first choice first; then come the other years', the latest
  // first, and the preset quick's. What is the same for every year comes before all of them.
  Evidence(const std::vector<Result>& results, std::vector<std::string> years);

  // The tables of `section` that have all of these columns, one a result, joined: of all results of
  // the first preset that has one (a preset measures each context by itself). Remembered as used.
  TableRows rows(const std::string& section, const Columns& columns) const;
  // All of them, each by itself; whoever takes one says so with use().
  std::vector<TableRows> tables(const std::string& section, const Columns& columns) const;
  void use(const TableRows& rows) const;

  // The results whose tables were used.
  const std::vector<const Result*>& used() const { return used_; }

 private:
  int rank_of(const Result& result) const;  // small numbers first

  std::vector<std::string> years_;
  std::vector<const Result*> results_;
  mutable std::vector<const Result*> used_;
};

// "2025" of a measurement of that year's preset ("ddp_2025"); "" of others.
std::string year_of(const std::string& measurement);

}  // namespace flashstep::report
