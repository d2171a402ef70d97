// Two reports side by side.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/combine.h"
#include "flashstep/report/report.h"

namespace flashstep::tools {
namespace {

using measure::Cell;

// How a column of measured values tells its spread by those behind it: "time, p10, p90", "forward,
// forward p10, forward p90", "mean, deviation".
enum class Spread { kNone, kSpan, kDeviation };

struct Metric {
  size_t column = 0;
  Spread spread = Spread::kNone;
};

Spread spread_at(const measure::Table& table, size_t column) {
  const auto name = [&](size_t i) {
    return i < table.columns.size() ? table.columns[i].name : std::string();
  };
  const std::string value = name(column), next = name(column + 1), last = name(column + 2);
  if (value == "mean" && next == "deviation") return Spread::kDeviation;
  const bool span =
      (next == "p10" && last == "p90") || (next == value + " p10" && last == value + " p90");
  return span ? Spread::kSpan : Spread::kNone;
}

// The columns that have a spread; in a table without any, those that have a unit.
std::vector<Metric> metrics_of(const measure::Table& table) {
  std::vector<Metric> metrics, others;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Spread spread = spread_at(table, i);
    if (spread != Spread::kNone) metrics.push_back({i, spread});
    if (!table.columns[i].unit.empty()) others.push_back({i, Spread::kNone});
  }
  return metrics.empty() ? others : metrics;
}

// What a row is about: its texts, and the whole numbers before the first measured one.
std::string label_of(const TableRow& row, size_t first_metric) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < first_metric; ++i) {
    const measure::Column& column = row.table->columns[i];
    const Cell& cell = row.table->rows[row.index][i];
    if (std::holds_alternative<double>(cell.value()) && column.unit != "MB") continue;
    const std::string text = measure::display(cell, column.format);
    if (text != "-") parts.push_back(cell.is_text() ? text : column.name + " " + text);
  }
  return join(parts);
}

// A column that says what the numbers beside it were made by: "by", "gradients by", "limited by".
bool tells_the_way(const std::string& column) { return column == "by" || column.ends_with(" by"); }

// The column of `b` for one of `a`: of several by one name ("in theory") each has its own.
std::optional<size_t> counterpart(const measure::Table& a, size_t column, const measure::Table& b) {
  const auto is_named = [&](const measure::Column& c) { return c.name == a.columns[column].name; };
  const auto begin = a.columns.begin();
  auto before = std::count_if(begin, begin + static_cast<ptrdiff_t>(column), is_named);
  for (size_t i = 0; i < b.columns.size(); ++i) {
    if (is_named(b.columns[i]) && before-- == 0) return i;
  }
  return std::nullopt;
}

struct Span {
  double value, low, high;  // not finite where one is not known
};

Span span_of(const TableRow& row, const Metric& metric) {
  const auto number = [&](size_t i) {
    return row.table->rows[row.index][metric.column + i].number();
  };
  const double value = number(0);
  if (metric.spread == Spread::kSpan) return {value, number(1), number(2)};
  const double deviation = metric.spread == Spread::kDeviation ? number(1) : 0;
  const double around = std::isfinite(deviation) ? 2 * deviation : 0;
  return {value, value - around, value + around};
}

class Comparison {
 public:
  Comparison() {
    table_.title = "Two reports side by side";
    table_.columns = {measure::text_column("measurement"),
                      measure::text_column("case"),
                      measure::text_column("what"),
                      measure::text_column("unit"),
                      significant("A", ""),
                      significant("B", ""),
                      measure::number_column("change", "%", 1),
                      measure::text_column("noise")};
  }

  // Tables of every single run are left out: the others are made of them.
  void add(const Result& a, const Result& b) {
    for (const NamedTable& left : a.tables) {
      for (const NamedTable& right : b.tables) {
        if (left.name == right.name && !left.name.ends_with("_runs"))
          add(a.measurement, left.table, right.table);
      }
    }
  }

  measure::Table take() {
    table_.notes.push_back(
        str("Change: B over A less 1. Beyond the noise: the spans from p10 to p90 "
            "(or two standard deviations around the mean) do not touch. ",
            beyond_, " of ", count_of(known_, "number"), " with a spread",
            beyond_ == 1 ? " differs" : " differ", " by more than the noise."));
    return std::move(table_);
  }

 private:
  void add(const std::string& name, const measure::Table& a, const measure::Table& b) {
    const auto metrics = metrics_of(a);
    if (metrics.empty()) return;
    const size_t begin = metrics.front().column;
    const auto first = counterpart(a, begin, b);
    if (!first) return;
    std::map<std::string, std::vector<TableRow>> rows;
    for (size_t i = 0; i < b.rows.size(); ++i) {
      const TableRow row{nullptr, &b, i};
      rows[label_of(row, *first)].push_back(row);
    }
    std::map<std::string, size_t> seen;
    for (size_t i = 0; i < a.rows.size(); ++i) {
      const TableRow row{nullptr, &a, i};
      const std::string label = label_of(row, begin);
      const size_t number = seen[label]++;  // of several rows by one name the first is the first's
      if (number >= rows[label].size()) continue;
      const TableRow& other = rows[label][number];
      for (const Metric& metric : metrics) add_metric({name, label}, row, metric, other);
      for (size_t column = begin; column < a.columns.size(); ++column) {
        if (tells_the_way(a.columns[column].name)) add_way({name, label}, row, column, other);
      }
    }
  }

  // `begin`: the first cells of the line.
  void add_metric(std::vector<Cell> begin, const TableRow& a, const Metric& metric,
                  const TableRow& b) {
    const measure::Column& column = a.table->columns[metric.column];
    // The other table may have columns that this one has not.
    const auto there = counterpart(*a.table, metric.column, *b.table);
    if (!there || spread_at(*b.table, *there) != metric.spread) return;
    const Span left = span_of(a, metric), right = span_of(b, {*there, metric.spread});
    if (!std::isfinite(left.value + left.low + left.high + right.value + right.low + right.high))
      return;
    const bool beyond = right.low > left.high || right.high < left.low;
    const bool known = metric.spread != Spread::kNone;
    if (!known && left.value == right.value) return;  // counted or calculated, and the same
    beyond_ += known && beyond;
    known_ += known;
    begin.insert(begin.end(), {column.name, column.unit, left.value, right.value,
                               100 * (right.value / left.value - 1),
                               !known ? Cell() : Cell(beyond ? "beyond" : "within")});
    table_.add_row(std::move(begin));
  }

  void add_way(std::vector<Cell> begin, const TableRow& a, size_t column, const TableRow& b) {
    const std::string& name = a.table->columns[column].name;
    const Cell left = a.table->rows[a.index][column], right = b.cell(name);
    if (!left.is_text() || !right.is_text() || left == right) return;
    begin.insert(begin.end(), {name, "", left, right, Cell(), Cell()});
    table_.add_row(std::move(begin));
  }

  measure::Table table_;
  size_t beyond_ = 0, known_ = 0;
};

std::vector<Result> results_of(const std::filesystem::path& directory,
                               std::vector<std::string>& notes) {
  StoredResults stored = read_results(directory);
  require(!stored.results.empty(), "[report] expected results in ", directory.string(),
          "/results, got none");
  notes.insert(notes.end(), stored.complaints.begin(), stored.complaints.end());
  return current(std::move(stored.results), {});
}

}  // namespace

BenchReport compare_reports(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::vector<std::string> notes;
  const std::vector<Result> left = results_of(a, notes), right = results_of(b, notes);
  Comparison comparison;
  std::vector<std::string> only_a, only_b;
  for (const Result& result : left) {
    const auto other = std::ranges::find(right, result.measurement, &Result::measurement);
    if (other == right.end())
      only_a.push_back(result.measurement);
    else
      comparison.add(result, *other);
  }
  for (const Result& result : right) {
    if (std::ranges::count(left, result.measurement, &Result::measurement) == 0)
      only_b.push_back(result.measurement);
  }
  BenchReport report;
  report.table = comparison.take();
  for (const auto& [name, results] : {std::pair("A", &left), std::pair("B", &right)}) {
    const Provenance& made = results->front().made;
    notes.push_back(str(name, ": ", made.machine, "; ", made.version, "; ", made.measured_at, "."));
  }
  if (!only_a.empty()) notes.push_back("Only in A: " + join(only_a) + ".");
  if (!only_b.empty()) notes.push_back("Only in B: " + join(only_b) + ".");
  report.table.notes.insert(report.table.notes.begin(), notes.begin(), notes.end());
  return report;
}

}  // namespace flashstep::tools
