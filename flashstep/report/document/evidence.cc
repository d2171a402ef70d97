#include "flashstep/report/document/evidence.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

constexpr double kSame = 0.02;

// "ddp_2025" -> "2025"
std::string preset_in(const std::string& measurement) {
  const size_t at = measurement.rfind('_');
  return at == std::string::npos ? "" : measurement.substr(at + 1);
}

std::optional<size_t> column_of(const measure::Table& table, const std::string& name, size_t nth) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == name && nth-- == 0) return i;
  }
  return std::nullopt;
}

}  // namespace

size_t TableView::rows() const {
  size_t rows = 0;
  for (const Part& part : parts_) rows += part.table->rows.size();
  return rows;
}

bool TableView::has(const std::string& column) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    return column_of(*part.table, column, 0).has_value();
  });
}

std::optional<TableView::Place> TableView::place(size_t row, const std::string& column,
                                                 size_t nth) const {
  for (const Part& part : parts_) {
    if (row >= part.table->rows.size()) {
      row -= part.table->rows.size();
      continue;
    }
    const auto at = column_of(*part.table, column, nth);
    if (!at) return std::nullopt;
    return Place{part.table, row, *at};
  }
  return std::nullopt;
}

double TableView::number(size_t row, const std::string& column, size_t nth) const {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const auto at = place(row, column, nth);
  if (!at) return nothing;
  const auto& value = at->table->rows[at->row][at->column].value();
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return nothing;
}

std::string TableView::text(size_t row, const std::string& column, size_t nth) const {
  const auto at = place(row, column, nth);
  if (!at) return "";
  const measure::Cell& cell = at->table->rows[at->row][at->column];
  if (std::holds_alternative<std::monostate>(cell.value())) return "";
  return measure::display(cell, at->table->columns[at->column].format);
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

Evidence::Evidence(const std::vector<Result>& results, std::vector<std::string> years)
    : years_(std::move(years)) {
  for (const Result& result : results) results_.push_back(&result);
  std::stable_sort(results_.begin(), results_.end(),
                   [&](const Result* a, const Result* b) { return rank_of(*a) < rank_of(*b); });
}

int Evidence::rank_of(const Result& result) const {
  if (preset_in(result.measurement) == "quick") return 9000;
  const std::string year = year_of(result.measurement);
  if (year.empty()) return 0;  // the same for every year
  const auto wanted = std::find(years_.begin(), years_.end(), year);
  if (wanted != years_.end()) return 1 + static_cast<int>(wanted - years_.begin());
  return 1000 + 2100 - std::stoi(year);
}

std::vector<TableView> Evidence::tables(const std::string& section,
                                        const std::vector<std::string>& columns) const {
  std::vector<TableView> found;
  for (const Result* result : results_) {
    if (result->section != section) continue;
    for (const NamedTable& named : result->tables) {
      TableView view({{result, &named.table}});
      const bool all = std::all_of(columns.begin(), columns.end(),
                                   [&](const std::string& column) { return view.has(column); });
      if (all && view.rows() > 0) found.push_back(std::move(view));
    }
  }
  return found;
}

TableView Evidence::table(const std::string& section,
                          const std::vector<std::string>& columns) const {
  std::vector<TableView::Part> parts;
  for (const TableView& view : tables(section, columns)) {
    const TableView::Part& part = view.parts().front();
    if (!parts.empty() && parts.back().result == part.result) continue;
    if (!parts.empty() && rank_of(*parts.back().result) != rank_of(*part.result)) break;
    parts.push_back(part);
  }
  TableView joined(std::move(parts));
  use(joined);
  return joined;
}

void Evidence::use(const TableView& view) const {
  for (const TableView::Part& part : view.parts()) {
    const std::string& name = part.result->measurement;
    if (std::find(used_.begin(), used_.end(), name) == used_.end()) used_.push_back(name);
  }
}

std::string year_of(const std::string& measurement) {
  const std::string preset = preset_in(measurement);
  const bool is_year = preset.size() == 4 && preset.find_first_not_of("0123456789") == preset.npos;
  return is_year ? preset : "";
}

int compare_measured(double a, double b) {
  if (std::abs(a / b - 1) <= kSame) return 0;
  return a < b ? -1 : 1;
}

void Tally::add(double a, double b) {
  const int order = compare_measured(a, b);
  ++(order < 0 ? less_ : order == 0 ? same_ : more_);
}

std::string Tally::words(const char* less, const char* same, const char* more) const {
  std::vector<std::string> parts;
  for (const auto& [count, word] :
       {std::pair(less_, less), std::pair(same_, same), std::pair(more_, more)}) {
    if (count == 0) continue;
    if (cases() == 1) return word;
    if (count == cases()) return str(word, " in all ", count, " cases");
    parts.push_back(str(word, " in ", count, " of ", cases(), " cases"));
  }
  return join(parts);
}

std::string three_digits(double value) {
  return measure::display(measure::Cell(value), {measure::NumberFormat::Style::kSignificant, 3});
}

std::string speed_words(double ratio) {
  if (compare_measured(ratio, 1) == 0) return "as fast as";
  return ratio > 1 ? fixed(ratio, 2) + " times as fast as"
                   : "only " + fixed(ratio, 2) + " times as fast as";
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + " %"; }

std::string milliseconds(double ms) { return three_digits(ms) + " ms"; }

std::string count_of(size_t count, const std::string& thing) {
  return str(count, " ", thing, count == 1 ? "" : "s");
}

}  // namespace flashstep::report
