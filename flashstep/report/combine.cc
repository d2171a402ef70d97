// What answers are computed from, and put together of.
#include "flashstep/report/combine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {

namespace {

// "ddp_2025" -> "2025"
std::string preset_in(const std::string& measurement) {
  const size_t at = measurement.rfind('_');
  return at == std::string::npos ? "" : measurement.substr(at + 1);
}

bool has_columns(const measure::Table& table, const Columns& columns) {
  return std::ranges::all_of(
      columns, [&](const std::string& name) { return column_named(table, name).has_value(); });
}

constexpr double kSame = 0.02;
constexpr double kFormulaExact = 0.01;   // nearer than that is not worth a number
constexpr double kFormulaAgrees = 0.10;  // formulas leave out temporaries, and allocators round up

}  // namespace

std::optional<size_t> column_named(const measure::Table& table, const std::string& name) {
  const auto at = std::ranges::find(table.columns, name, &measure::Column::name);
  if (at == table.columns.end()) return std::nullopt;
  return static_cast<size_t>(at - table.columns.begin());
}

measure::Cell TableRow::cell(const std::string& column) const {
  const auto at = table == nullptr ? std::nullopt : column_named(*table, column);
  return at ? table->rows[index][*at] : measure::Cell();
}

double TableRow::number(const std::string& column) const { return cell(column).number(); }

std::string TableRow::text(const std::string& column) const {
  const measure::Cell here = cell(column);
  if (here == measure::Cell()) return "";
  std::string text = measure::display(here, table->columns[*column_named(*table, column)].format);
  if (text.ends_with(" *")) text.resize(text.size() - 2);  // the mark of the table's footnote
  return text;
}

TableRows TableRows::where(const Cells& cells) const {
  return if_([&](const TableRow& row) {
    return std::ranges::all_of(
        cells, [&](const auto& cell) { return row.text(cell.first) == cell.second; });
  });
}

TableRows TableRows::with(const Columns& columns) const {
  return if_([&](const TableRow& row) {
    return std::ranges::none_of(columns,
                                [&](const auto& column) { return std::isnan(row.number(column)); });
  });
}

TableRows TableRows::like(const TableRow& row, const Columns& columns) const {
  Cells cells;
  for (const std::string& column : columns) cells.emplace_back(column, row.text(column));
  return where(cells);
}

TableRows TableRows::once(const Columns& columns) const {
  TableRows first;
  for (const TableRows& same : by(columns)) first.push_back(same.front());
  return first;
}

std::vector<TableRows> TableRows::by(const Columns& columns) const {
  std::vector<TableRows> groups;
  std::map<Columns, size_t> known;  // texts, and which group has them
  for (const TableRow& row : *this) {
    Columns texts;
    for (const std::string& column : columns) texts.push_back(row.text(column));
    const auto [group, is_new] = known.try_emplace(std::move(texts), groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(row);
  }
  return groups;
}

std::vector<std::string> TableRows::distinct(const std::string& column) const {
  std::vector<std::string> found;
  for (const TableRow& row : once({column})) {
    if (!row.text(column).empty()) found.push_back(row.text(column));
  }
  return found;
}

std::vector<double> TableRows::numbers(const std::string& column) const {
  std::vector<double> numbers;
  for (const TableRow& row : with({column})) numbers.push_back(row.number(column));
  return numbers;
}

double TableRows::sum(const std::string& column) const {
  const std::vector<double> all = numbers(column);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

TableRow TableRows::most(const std::string& column, double sign) const {
  const TableRows known = with({column});
  const auto signed_number = [&](const TableRow& row) { return sign * row.number(column); };
  return known.empty() ? TableRow() : std::ranges::max(known, {}, signed_number);
}

Evidence::Evidence(const std::vector<Result>& results, std::vector<std::string> years)
    : years_(std::move(years)) {
  for (const Result& result : results) results_.push_back(&result);
  std::ranges::stable_sort(results_, {}, [&](const Result* result) { return rank_of(*result); });
}

int Evidence::rank_of(const Result& result) const {
  if (preset_in(result.measurement) == "quick") return 9000;
  const std::string year = year_of(result.measurement);
  if (year.empty()) return 0;  // the same for every year
  const auto wanted = std::ranges::find(years_, year);
  if (wanted != years_.end()) return 1 + static_cast<int>(wanted - years_.begin());
  return 1000 + 2100 - std::stoi(year);
}

std::vector<TableRows> Evidence::tables(const std::string& name) const {
  const AnswerTable& wanted = answer_table(name);
  std::vector<TableRows> found;
  for (const Result* result : results_) {
    if (result->section != wanted.section) continue;
    for (const NamedTable& named : result->tables) {
      if (named.table.rows.empty() || !has_columns(named.table, wanted.columns) ||
          !named.table.title.starts_with(wanted.title)) {
        continue;
      }
      found.emplace_back();
      for (size_t i = 0; i < named.table.rows.size(); ++i)
        found.back().push_back({result, &named.table, i});
    }
  }
  return found;
}

TableRows Evidence::rows(const std::string& name) const {
  TableRows joined;
  for (const TableRows& rows : tables(name)) {
    if (!joined.empty() && joined.back().result == rows.front().result) continue;
    if (!joined.empty() && rank_of(*joined.back().result) != rank_of(*rows.front().result)) break;
    joined.insert(joined.end(), rows.begin(), rows.end());
  }
  use(joined);
  return joined.with(answer_table(name).with);
}

void Evidence::use(const TableRows& rows) const {
  for (const TableRow& row : rows) {
    if (!contains(used_, row.result)) used_.push_back(row.result);
  }
}

std::string year_of(const std::string& measurement) {
  const std::string preset = preset_in(measurement);
  const bool is_year = preset.size() == 4 && preset.find_first_not_of("0123456789") == preset.npos;
  return is_year ? preset : "";
}

const Answers& answers() {
  static const Answers all = [] {
    Answers answers;
    for (const auto part : {account_answers, kernel_answers, memory_answers, parallel_answers,
                            profile_answers, step_answers}) {
      answers.merge(part());
    }
    return answers;
  }();
  return all;
}

std::string subject_of(const TableRows& rows) {
  const std::string title = rows.empty() ? "" : rows.front().table->title;
  const size_t at = title.find(": ");
  return at == std::string::npos ? title : title.substr(at + 2);
}

std::string three_digits(double value) {
  return measure::display(measure::Cell(value), {measure::NumberFormat::Style::kSignificant, 3});
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + " %"; }

std::string milliseconds(double ms) { return three_digits(ms) + " ms"; }

std::string memory_words(double mebibytes) {
  const bool large = mebibytes >= 1024;
  return three_digits(large ? mebibytes / 1024 : mebibytes) + (large ? " GiB" : " MiB");
}

std::string count_of(size_t count, const std::string& thing) {
  return str(count, " ", thing, count == 1 ? "" : "s");
}

std::string span_of(const std::vector<double>& values, int digits) {
  if (values.empty()) return "";
  const auto [least, most] = std::ranges::minmax(values);
  const std::string low = fixed(least, digits), high = fixed(most, digits);
  return low == high ? low : low + " to " + high;
}

std::string span_of(std::vector<std::pair<double, std::string>> said) {
  std::ranges::sort(said);
  if (said.size() < 2) return said.empty() ? "" : said.front().second;
  return said.front().second + " to " + said.back().second;
}

int compare_measured(double a, double b) {
  if (std::abs(a / b - 1) <= kSame) return 0;
  return a < b ? -1 : 1;
}

std::string speed_words(double ratio) {
  if (compare_measured(ratio, 1) == 0) return "as fast as";
  return (ratio > 1 ? "" : "only ") + fixed(ratio, 2) + " times as fast as";
}

std::string change_words(double from, double to, const char* less, const char* more) {
  const int order = compare_measured(to, from);
  if (order == 0) return "the same within 2 %";
  return percent(std::abs(to / from - 1), 1) + " " + (order < 0 ? less : more);
}

Tally::Tally(const RowPairs& pairs, const std::string& column) {
  for (const auto& [a, b] : pairs) add(a.number(column), b.number(column));
}

void Tally::add(double a, double b) {
  const int order = compare_measured(a, b);
  ++(order < 0 ? less_ : order == 0 ? same_ : more_);
}

std::string Tally::words(const char* less, const char* same, const char* more) const {
  std::array counts = {std::pair(less_, less), std::pair(same_, same), std::pair(more_, more)};
  std::ranges::stable_sort(counts, std::greater(), &std::pair<size_t, const char*>::first);
  std::vector<std::string> parts;
  for (const auto& [count, word] : counts) {
    if (count == 0) continue;
    if (cases() == 1) return word;
    if (count == cases()) return str(word, " in all ", count, " cases");
    parts.push_back(str(word, " in ", count, parts.empty() ? str(" of ", cases(), " cases") : ""));
  }
  return join(parts);
}

RowPairs pairs(const TableRows& a, const TableRows& b, const Columns& same_case) {
  RowPairs found;
  for (const TableRow& row : a) {
    if (const TableRow other = b.like(row, same_case).front()) found.push_back({row, other});
  }
  return found;
}

RowPairs pairs(const TableRows& rows, const std::string& column, const std::string& a,
               const std::string& b, const Columns& same_case) {
  return pairs(rows.where({{column, a}}), rows.where({{column, b}}), same_case);
}

std::vector<double> ratios(const RowPairs& pairs, const std::string& column) {
  std::vector<double> ratios;
  for (const auto& [a, b] : pairs) {
    const double ratio = b.number(column) / a.number(column);
    if (ratio > 0 && std::isfinite(ratio)) ratios.push_back(ratio);
  }
  return ratios;
}

double speed(const RowPairs& pairs, const std::string& column) {
  return measure::geometric_mean(ratios(pairs, column));
}

std::string speeds(const std::vector<double>& ratios, const std::string& b) {
  if (ratios.empty()) return "";
  const std::string words = speed_words(measure::geometric_mean(ratios)) + " " + b;
  if (ratios.size() < 2) return words;
  return str(words, " (geometric mean of ", ratios.size(), " cases, ", span_of(ratios, 2), ")");
}

std::string extremes(const TableRows& rows, const std::string& column, const std::string& form) {
  std::vector<std::pair<double, std::string>> said;
  for (const TableRow& row : rows.with({column}))
    said.emplace_back(row.number(column), say(form, row));
  return span_of(std::move(said));
}

std::string against_formula(const TableRows& rows, const std::string& measured,
                            const std::string& formula) {
  if (rows.empty()) return "";
  double furthest = 0;
  size_t wrong = 0;
  for (const TableRow& row : rows) {
    const double apart = std::abs(row.number(measured) / row.number(formula) - 1);
    wrong += !(apart <= kFormulaAgrees);
    if (apart > furthest) furthest = apart;
  }
  const std::string cases =
      rows.size() == 1 ? "" : str(wrong > 0 ? " of " : " in all ", rows.size(), " cases");
  if (wrong > 0)
    return str("NOT what the formula says", rows.size() == 1 ? "" : str(" in ", wrong), cases);
  if (furthest <= kFormulaExact) return "what the formula says" + cases;
  return str("within ", percent(furthest, 1), " of the formula", cases);
}

void say_in_gibibytes(measure::Table& table) {
  double most = 0;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].unit != "MiB") continue;
    for (const auto& row : table.rows) most = std::fmax(most, row[i].number());
  }
  if (most < 1024) return;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    measure::Column& column = table.columns[i];
    if (column.unit != "MiB") continue;
    column.unit = "GiB";
    column.format = {measure::NumberFormat::Style::kSignificant, 3};
    for (auto& row : table.rows) {
      if (!std::isnan(row[i].number())) row[i] = row[i].number() / 1024;
    }
  }
}

measure::Table list(const TableRows& rows, const Columns& columns, size_t most) {
  measure::Table table;
  if (rows.empty()) return table;
  const measure::Table& first = *rows[0].table;
  for (const std::string& name : columns) {
    if (const auto at = column_named(first, name)) table.columns.push_back(first.columns[*at]);
  }
  for (size_t i = 0; i < std::min(most, rows.size()); ++i) {
    std::vector<measure::Cell> cells;
    for (const measure::Column& column : table.columns) cells.push_back(rows[i].cell(column.name));
    table.add_row(std::move(cells));
  }
  say_in_gibibytes(table);
  if (rows.size() > most)
    table.notes.push_back(str(rows.size() - most, " more rows are among all measurements."));
  return table;
}

}  // namespace flashstep::tools
