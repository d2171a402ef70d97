#include "flashstep/report/document/evidence.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

// A tie in words: clocks and neighbours move a time by that much.
constexpr double kSameSpeed = 0.02;

// "ddp_2025" -> "2025"
std::string preset_in(const std::string& measurement) {
  const size_t at = measurement.rfind('_');
  return at == std::string::npos ? "" : measurement.substr(at + 1);
}

// Small numbers first.
int rank_of(const Result& result, const std::string& years) {
  const std::string preset = preset_in(result.measurement);
  if (preset == "quick") return 9000;
  const bool is_year = preset.size() == 4 && preset.find_first_not_of("0123456789") == preset.npos;
  if (!is_year) return 0;  // the same for every year
  const int age = 2100 - std::stoi(preset);
  return years.find(preset) != std::string::npos ? age : 1000 + age;
}

}  // namespace

std::optional<size_t> TableView::place(const std::string& column, size_t nth) const {
  if (table_ == nullptr) return std::nullopt;
  for (size_t i = 0; i < table_->columns.size(); ++i) {
    if (table_->columns[i].name == column && nth-- == 0) return i;
  }
  return std::nullopt;
}

double TableView::number(size_t row, const std::string& column, size_t nth) const {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const auto at = place(column, nth);
  if (!at || row >= rows()) return nothing;
  const auto& value = table_->rows[row][*at].value();
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return nothing;
}

std::string TableView::text(size_t row, const std::string& column, size_t nth) const {
  const auto at = place(column, nth);
  if (!at || row >= rows()) return "";
  const measure::Cell& cell = table_->rows[row][*at];
  if (std::holds_alternative<std::monostate>(cell.value())) return "";
  return measure::display(cell, table_->columns[*at].format);
}

std::vector<size_t> TableView::where(const Wanted& wanted) const {
  std::vector<size_t> found;
  for (size_t row = 0; row < rows(); ++row) {
    const bool all = std::all_of(wanted.begin(), wanted.end(), [&](const auto& pair) {
      return text(row, pair.first) == pair.second;
    });
    if (all) found.push_back(row);
  }
  return found;
}

std::optional<size_t> TableView::first(const Wanted& wanted) const {
  const auto found = where(wanted);
  if (found.empty()) return std::nullopt;
  return found.front();
}

std::vector<std::string> TableView::distinct(const std::string& column) const {
  std::vector<std::string> texts;
  for (size_t row = 0; row < rows(); ++row) {
    const std::string here = text(row, column);
    if (!here.empty() && std::find(texts.begin(), texts.end(), here) == texts.end())
      texts.push_back(here);
  }
  return texts;
}

Evidence::Evidence(const std::vector<Result>& results, const std::string& years) {
  for (const Result& result : results) results_.push_back(&result);
  std::stable_sort(results_.begin(), results_.end(), [&](const Result* a, const Result* b) {
    return rank_of(*a, years) < rank_of(*b, years);
  });
}

std::vector<TableView> Evidence::tables(const std::string& section,
                                        const std::vector<std::string>& columns) const {
  std::vector<TableView> found;
  for (const Result* result : results_) {
    if (result->section != section) continue;
    for (const NamedTable& named : result->tables) {
      const TableView view(*result, named.table);
      const bool all = std::all_of(columns.begin(), columns.end(),
                                   [&](const std::string& column) { return view.has(column); });
      if (all && view.rows() > 0) found.push_back(view);
    }
  }
  return found;
}

TableView Evidence::table(const std::string& section,
                          const std::vector<std::string>& columns) const {
  const auto found = tables(section, columns);
  if (found.empty()) return {};
  use(found.front());
  return found.front();
}

void Evidence::use(const TableView& view) const {
  const std::string& name = view.result().measurement;
  if (std::find(used_.begin(), used_.end(), name) == used_.end()) used_.push_back(name);
}

std::string three_digits(double value) {
  return measure::display(measure::Cell(value), {measure::NumberFormat::Style::kSignificant, 3});
}

std::string speed_words(double ratio) {
  if (std::abs(ratio - 1) <= kSameSpeed) return "as fast as";
  return ratio > 1 ? fixed(ratio, 2) + " times as fast as"
                   : "only " + fixed(ratio, 2) + " times as fast as";
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + " %"; }

std::string milliseconds(double ms) { return three_digits(ms) + " ms"; }

std::string count_of(size_t count, const std::string& thing) {
  return str(count, " ", thing, count == 1 ? "" : "s");
}

}  // namespace flashstep::report
