#include "flashstep/report/document/evidence.h"

#include <algorithm>
#include <cmath>

namespace flashstep::report {
namespace {

// "ddp_2025" -> "2025"
std::string preset_in(const std::string& measurement) {
  const size_t at = measurement.rfind('_');
  return at == std::string::npos ? "" : measurement.substr(at + 1);
}

bool has_columns(const measure::Table& table, const Columns& columns) {
  return std::all_of(columns.begin(), columns.end(), [&](const std::string& name) {
    return std::any_of(table.columns.begin(), table.columns.end(),
                       [&](const measure::Column& column) { return column.name == name; });
  });
}

Columns texts(const TableRow& row, const Columns& columns) {
  Columns texts;
  for (const std::string& column : columns) texts.push_back(row.text(column));
  return texts;
}

}  // namespace

const measure::Cell* TableRow::cell(const std::string& column) const {
  if (table == nullptr) return nullptr;
  for (size_t i = 0; i < table->columns.size(); ++i) {
    if (table->columns[i].name == column) return &table->rows[index][i];
  }
  return nullptr;
}

double TableRow::number(const std::string& column) const {
  const measure::Cell* here = cell(column);
  return here == nullptr ? NAN : here->number();
}

std::string TableRow::text(const std::string& column) const {
  const measure::Cell* here = cell(column);
  if (here == nullptr || std::holds_alternative<std::monostate>(here->value())) return "";
  const auto at = static_cast<size_t>(here - table->rows[index].data());
  return measure::display(*here, table->columns[at].format);
}

bool TableRow::reads(const Cells& cells) const {
  return std::all_of(cells.begin(), cells.end(),
                     [&](const auto& wanted) { return text(wanted.first) == wanted.second; });
}

TableRows TableRows::where(const Cells& cells) const {
  return if_([&](const TableRow& row) { return row.reads(cells); });
}

TableRows TableRows::with(const Columns& columns) const {
  return if_([&](const TableRow& row) {
    return std::none_of(columns.begin(), columns.end(),
                        [&](const auto& column) { return std::isnan(row.number(column)); });
  });
}

TableRows TableRows::once(const Columns& columns) const {
  TableRows first;
  for (const TableRows& same : by(columns)) first.add(same.front());
  return first;
}

std::vector<TableRows> TableRows::by(const Columns& columns) const {
  std::vector<TableRows> groups;
  std::vector<Columns> known;
  for (const TableRow& row : rows_) {
    const Columns here = texts(row, columns);
    const auto at = std::find(known.begin(), known.end(), here) - known.begin();
    if (at == static_cast<ptrdiff_t>(known.size())) {
      known.push_back(here);
      groups.emplace_back();
    }
    groups[static_cast<size_t>(at)].add(row);
  }
  return groups;
}

std::vector<std::string> TableRows::distinct(const std::string& column) const {
  std::vector<std::string> found;
  for (const TableRows& same : by({column})) {
    if (!same.front().text(column).empty()) found.push_back(same.front().text(column));
  }
  return found;
}

std::vector<double> TableRows::numbers(const std::string& column) const {
  std::vector<double> numbers;
  for (const TableRow& row : with({column})) numbers.push_back(row.number(column));
  return numbers;
}

TableRow TableRows::least(const std::string& column) const {
  TableRow least;
  for (const TableRow& row : with({column})) {
    if (!least || row.number(column) < least.number(column)) least = row;
  }
  return least;
}

TableRow TableRows::most(const std::string& column) const {
  TableRow most;
  for (const TableRow& row : with({column})) {
    if (!most || row.number(column) > most.number(column)) most = row;
  }
  return most;
}

bool TableRows::has(const std::string& column) const {
  return std::any_of(rows_.begin(), rows_.end(),
                     [&](const TableRow& row) { return row.cell(column) != nullptr; });
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

std::vector<TableRows> Evidence::tables(const std::string& section, const Columns& columns) const {
  std::vector<TableRows> found;
  for (const Result* result : results_) {
    if (result->section != section) continue;
    for (const NamedTable& named : result->tables) {
      if (named.table.rows.empty() || !has_columns(named.table, columns)) continue;
      found.emplace_back();
      for (size_t i = 0; i < named.table.rows.size(); ++i)
        found.back().add({result, &named.table, i});
    }
  }
  return found;
}

TableRows Evidence::rows(const std::string& section, const Columns& columns) const {
  TableRows joined;
  for (const TableRows& rows : tables(section, columns)) {
    if (!joined.empty() && joined.back().result == rows.front().result) continue;
    if (!joined.empty() && rank_of(*joined.back().result) != rank_of(*rows.front().result)) break;
    for (const TableRow& row : rows) joined.add(row);
  }
  use(joined);
  return joined;
}

void Evidence::use(const TableRows& rows) const {
  for (const TableRow& row : rows) {
    if (std::find(used_.begin(), used_.end(), row.result) == used_.end())
      used_.push_back(row.result);
  }
}

std::string year_of(const std::string& measurement) {
  const std::string preset = preset_in(measurement);
  const bool is_year = preset.size() == 4 && preset.find_first_not_of("0123456789") == preset.npos;
  return is_year ? preset : "";
}

}  // namespace flashstep::report
