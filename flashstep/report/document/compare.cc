// Two reports side by side.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/document/combine.h"
#include "flashstep/report/document/report.h"

namespace flashstep::report {
namespace {

using measure::Cell;

enum class Spread { kNone, kSpan, kDeviation };

// A column of measured values.
struct Metric {
  size_t value = 0;
  Spread spread = Spread::kNone;
};

std::optional<size_t> column_named(const measure::Table& table, const std::string& name) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == name) return i;
  }
  return std::nullopt;
}

// How the columns after a value tell its spread: "time, p10, p90", "forward, forward p10, forward
// p90", "mean, deviation".
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
std::string label_of(const measure::Table& table, size_t row, size_t first_metric) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < first_metric; ++i) {
    const Cell& cell = table.rows[row][i];
    if (std::holds_alternative<double>(cell.value()) && table.columns[i].unit != "MB") continue;
    const std::string text = measure::display(cell, table.columns[i].format);
    if (text == "-") continue;
    parts.push_back(cell.is_text() ? text : table.columns[i].name + " " + text);
  }
  return join(parts);
}

std::map<std::string, std::vector<size_t>> rows_by_label(const measure::Table& table,
                                                         size_t first_metric) {
  std::map<std::string, std::vector<size_t>> rows;
  for (size_t row = 0; row < table.rows.size(); ++row)
    rows[label_of(table, row, first_metric)].push_back(row);
  return rows;
}

// A column that says what the numbers beside it were made by: "by", "gradients by", "limited by".
bool tells_the_way(const std::string& column) { return column == "by" || column.ends_with(" by"); }

std::optional<double> number_in(const measure::Table& table, size_t row, size_t column) {
  const auto& value = table.rows[row][column].value();
  if (const auto* number = std::get_if<double>(&value); number != nullptr && std::isfinite(*number))
    return *number;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  return std::nullopt;
}

struct Span {
  double value, low, high;
};

std::optional<Span> span_of(const measure::Table& table, size_t row, const Metric& metric) {
  const auto value = number_in(table, row, metric.value);
  if (!value) return std::nullopt;
  if (metric.spread == Spread::kNone) return Span{*value, *value, *value};
  const auto low = number_in(table, row, metric.value + 1);
  if (metric.spread == Spread::kDeviation) {
    const double deviation = low.value_or(0);
    return Span{*value, *value - 2 * deviation, *value + 2 * deviation};
  }
  const auto high = number_in(table, row, metric.value + 2);
  if (!low || !high) return std::nullopt;
  return Span{*value, *low, *high};
}

class Comparison {
 public:
  Comparison() {
    table_.title = "Two reports side by side";
    table_.columns = {
        measure::text_column("measurement"),
        measure::text_column("case"),
        measure::text_column("what"),
        measure::text_column("unit"),
        {"A", "", measure::Align::kRight, {measure::NumberFormat::Style::kSignificant, 4}},
        {"B", "", measure::Align::kRight, {measure::NumberFormat::Style::kSignificant, 4}},
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
    const auto first = column_named(b, a.columns[metrics.front().value].name);
    if (!first) return;
    const auto rows = rows_by_label(b, *first);
    std::map<std::string, size_t> seen;
    for (size_t row = 0; row < a.rows.size(); ++row) {
      const std::string label = label_of(a, row, metrics.front().value);
      const auto same = rows.find(label);
      const size_t number = seen[label]++;  // of several rows by one name the first is the first's
      if (same == rows.end() || number >= same->second.size()) continue;
      const size_t other = same->second[number];
      for (const Metric& metric : metrics) add(name, label, a, row, metric, b, other);
      for (size_t i = metrics.front().value; i < a.columns.size(); ++i) {
        if (tells_the_way(a.columns[i].name)) add_way(name, label, a, row, i, b, other);
      }
    }
  }

  void add(const std::string& name, const std::string& label, const measure::Table& a, size_t row,
           const Metric& metric, const measure::Table& b, size_t other) {
    const measure::Column& column = a.columns[metric.value];
    // The other table may have columns that this one has not.
    const auto there = column_named(b, column.name);
    if (!there || spread_at(b, *there) != metric.spread) return;
    const auto left = span_of(a, row, metric);
    const auto right = span_of(b, other, {*there, metric.spread});
    if (!left || !right) return;
    const bool beyond = right->low > left->high || right->high < left->low;
    const bool known = metric.spread != Spread::kNone;
    if (!known && left->value == right->value) return;  // counted or calculated, and the same
    beyond_ += known && beyond;
    known_ += known;
    table_.add_row({name, label, column.name, column.unit, left->value, right->value,
                    100 * (right->value / left->value - 1),
                    !known ? Cell() : Cell(beyond ? "beyond" : "within")});
  }

  void add_way(const std::string& name, const std::string& label, const measure::Table& a,
               size_t row, size_t column, const measure::Table& b, size_t other) {
    const auto there = column_named(b, a.columns[column].name);
    if (!there) return;
    const Cell &left = a.rows[row][column], &right = b.rows[other][*there];
    if (!left.is_text() || !right.is_text() || left.value() == right.value()) return;
    table_.add_row({name, label, a.columns[column].name, "", left, right, Cell(), Cell()});
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
  std::vector<std::string> alone;
  for (const Result& result : left) {
    const auto other = std::find_if(right.begin(), right.end(), [&](const Result& r) {
      return r.measurement == result.measurement;
    });
    if (other == right.end())
      alone.push_back(result.measurement);
    else
      comparison.add(result, *other);
  }
  BenchReport report;
  report.table = comparison.take();
  for (const auto& [name, results] : {std::pair("A", &left), std::pair("B", &right)}) {
    const Provenance& made = results->front().made;
    notes.push_back(str(name, ": ", made.machine, "; ", made.version, "; ", made.measured_at, "."));
  }
  if (!alone.empty()) notes.push_back("Only in A: " + join(alone) + ".");
  report.table.notes.insert(report.table.notes.begin(), notes.begin(), notes.end());
  return report;
}

}  // namespace flashstep::report
