// What an answer is computed from: the tables of the results, asked for by their columns.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/document/result.h"

namespace flashstep::report {

// Tables of one kind from one or several results, their rows one after the other; or none. Columns
// are named; of several with one name `nth` says which.
class TableView {
 public:
  struct Part {
    const Result* result;
    const measure::Table* table;
  };

  TableView() = default;
  explicit TableView(std::vector<Part> parts) : parts_(std::move(parts)) {}

  explicit operator bool() const { return !parts_.empty(); }
  const std::vector<Part>& parts() const { return parts_; }
  size_t rows() const;
  // NaN where there is no number: an empty cell, "OOM", a column or a table that is not there.
  double number(size_t row, const std::string& column, size_t nth = 0) const;
  // As it is displayed, empty cells as "".
  std::string text(size_t row, const std::string& column, size_t nth = 0) const;
  bool has(const std::string& column) const;  // in one of the tables at least

  // Rows whose cells read so.
  using Wanted = std::vector<std::pair<std::string, std::string>>;
  std::vector<size_t> where(const Wanted& wanted) const;
  std::optional<size_t> first(const Wanted& wanted) const;  // of them
  // What stands in a column, each once, in the order of the rows; empty cells left out.
  std::vector<std::string> distinct(const std::string& column) const;

  // Of the first.
  const Result& result() const { return *parts_.front().result; }
  const measure::Table& table() const { return *parts_.front().table; }

 private:
  struct Place {
    const measure::Table* table;
    size_t row, column;
  };
  std::optional<Place> place(size_t row, const std::string& column, size_t nth) const;

  std::vector<Part> parts_;
};

// The results that a question may be answered from. They must outlive it.
class Evidence {
 public:
  // `years` whose presets are wanted, first choice first; then come the other years', the latest
  // first, and the preset quick's. What is the same for every year comes before all of them.
  Evidence(const std::vector<Result>& results, std::vector<std::string> years);

  // The tables of `section` that have all of these columns, one a result, joined: of all results of
  // the first preset that has one (a preset measures each context by itself). Remembered as used.
  TableView table(const std::string& section, const std::vector<std::string>& columns) const;
  // All of them, each by itself; whoever takes one says so with use().
  std::vector<TableView> tables(const std::string& section,
                                const std::vector<std::string>& columns) const;

  void use(const TableView& view) const;

  // Names of the measurements whose tables were used.
  const std::vector<std::string>& used() const { return used_; }

 private:
  int rank_of(const Result& result) const;  // small numbers first

  std::vector<std::string> years_;
  std::vector<const Result*> results_;
  mutable std::vector<std::string> used_;
};

// "2025" of a measurement of that year's preset ("ddp_2025"); "" of others.
std::string year_of(const std::string& measurement);

// ---- Numbers in sentences

// -1, 0 or 1: `a` is less than, the same as, or more than `b`. Clocks and neighbours move a time by
// 2 %: within that, times, rates and shares of time are the same.
int compare_measured(double a, double b);

// How cases compare, in words.
class Tally {
 public:
  void add(double a, double b);
  // "shorter", "shorter in all 3 cases", "shorter in 2 of 3 cases, the same in 1 of 3 cases".
  std::string words(const char* less, const char* same, const char* more) const;
  size_t less() const { return less_; }
  size_t more() const { return more_; }
  size_t cases() const { return less_ + same_ + more_; }

 private:
  size_t less_ = 0, same_ = 0, more_ = 0;
};

// "12.3", "0.0045", "1,230": three significant digits.
std::string three_digits(double value);
// "1.25 times as fast as", "only 0.80 times as fast as", "as fast as" (within 2 %).
std::string speed_words(double ratio);
std::string percent(double share, int digits = 0);             // 0.123 -> "12 %"
std::string milliseconds(double ms);                           // "12.3 ms"
std::string count_of(size_t count, const std::string& thing);  // "1 row", "3 rows"

}  // namespace flashstep::report
