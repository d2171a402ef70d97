#include "flashstep/bench/schema.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {
namespace {

using measure::Cell;
using measure::Series;

Cell scaled(const Cell& cell, double factor) {
  return factor == 1 || cell == Cell() || cell.is_text() ? cell : Cell(cell.number() * factor);
}

// What `reduce` makes of a series of at least so many values.
CellOf of_series(const std::string& series, size_t least, double factor,
                 const std::function<double(const std::vector<double>&)>& reduce) {
  return [=](const Record& r, const Records&) {
    const auto& values = r.series(series);
    return values.size() < least ? Cell() : Cell(reduce(values) * factor);
  };
}

}  // namespace

std::vector<Cell> row_of(const Schema& schema, const Record& record, const Records& all) {
  std::vector<Cell> row;
  for (const SchemaColumn& column : schema) row.push_back(column.cell(record, all));
  return row;
}

measure::Table fill(const std::string& title, const Schema& schema, const Records& records) {
  measure::Table table;
  table.title = title;
  for (const SchemaColumn& column : schema) table.columns.push_back(column.column);
  for (const Record& record : records) table.add_row(row_of(schema, record, records));
  return table;
}

Schema operator+(Schema a, const Schema& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

CellOf implementation() {
  return [](const Record& r, const Records&) { return Cell(r.implementation); };
}

CellOf fact(const std::string& name, double factor) {
  return [name, factor](const Record& r, const Records&) { return scaled(r.cell(name), factor); };
}

CellOf median(const std::string& series, double factor) { return quantile(series, 0.5, factor); }

CellOf quantile(const std::string& series, double q, double factor) {
  return of_series(series, 1, factor, [q](const auto& all) { return measure::quantile(all, q); });
}

CellOf mean(const std::string& series, double factor) {
  return of_series(series, 1, factor, [](const auto& all) { return measure::mean(all); });
}

CellOf deviation(const std::string& series, double factor) {
  return of_series(series, 2, factor, [](const auto& all) { return measure::sample_stddev(all); });
}

CellOf count(const std::string& series) {
  return [series](const Record& r, const Records&) {
    return r.has(series) ? Cell(r.series(series).size()) : Cell();
  };
}

CellOf or_word(const CellOf& cell) {
  return [cell](const Record& r, const Records& all) {
    return r.outcome.measured() ? cell(r, all) : Cell(r.outcome.word());
  };
}

CellOf if_has(const std::string& series, const CellOf& cell) {
  return [series, cell](const Record& r, const Records& all) {
    return r.has(series) ? cell(r, all) : Cell();
  };
}

CellOf of(const std::string& implementation, const CellOf& cell) {
  return [implementation, cell](const Record& r, const Records& all) {
    const Record* other = all.find(r, implementation);
    return other == nullptr ? Cell() : cell(*other, all);
  };
}

CellOf finite(const NumberOf& number) {
  return [number](const Record& r, const Records& all) {
    const double value = number(r, all);
    return std::isfinite(value) ? Cell(value) : Cell();
  };
}

NumberOf rate(const std::string& fact, const std::string& series, double factor) {
  return [fact, series, factor](const Record& r, const Records&) {
    return factor * r.number(fact) / r.median(series);
  };
}

SchemaColumn text_key(const std::string& name) { return {measure::text_column(name), fact(name)}; }

SchemaColumn integer_key(const std::string& name) {
  return {measure::integer_column(name), fact(name)};
}

measure::Column error_column(const std::string& name, const std::string& unit) {
  return {name, unit, measure::Align::kRight, {measure::NumberFormat::Style::kScientific, 1}};
}

measure::Column significant(const std::string& name, const std::string& unit, int digits) {
  return {name, unit, measure::Align::kRight, {measure::NumberFormat::Style::kSignificant, digits}};
}

double times_as_fast(const Record& record, const Records& all, const std::string& implementation,
                     const std::string& series) {
  const Record* other = all.find(record, implementation);
  return other == nullptr ? NAN : other->median(series) / record.median(series);
}

std::vector<double> finite_numbers(const Records& records, const NumberOf& number) {
  std::vector<double> numbers;
  for (const Record& r : records) {
    const double one = number(r, records);
    if (std::isfinite(one)) numbers.push_back(one);
  }
  return numbers;
}

std::vector<std::string> failures(const Records& records) {
  // How much memory was missing differs from cell to cell; that it was missing is the reason.
  const auto reason = [](const Record& r) {
    const bool memory = r.outcome.status == Status::kOutOfMemory;
    return str(r.implementation, ": ", memory ? r.outcome.word() : r.outcome.sentence());
  };
  std::vector<std::string> sentences;
  for (const auto& [same, cells] :
       records.where([](const Record& r) { return !r.outcome.measured(); }).grouped(reason)) {
    const Record& r = cells.all().front();
    const std::string others =
        cells.all().size() > 1 ? str(" and ", cells.all().size() - 1, " more") : "";
    sentences.push_back(str(r.what, others, r.implementation.empty() ? "" : ", ", r.implementation,
                            ": ", r.outcome.sentence(), "."));
  }
  return sentences;
}

std::vector<std::string> speed_beside_others(const Records& records, const std::string& ours,
                                             const std::string& series) {
  std::vector<std::string> sentences;
  for (const std::string& peer : records.distinct(implementation_of)) {
    const auto ratios = finite_numbers(records, [&](const Record& r, const Records& all) {
      return r.implementation == ours ? times_as_fast(r, all, peer, series) : NAN;
    });
    if (peer == ours || ratios.empty()) continue;
    const auto [worst, best] = std::minmax_element(ratios.begin(), ratios.end());
    sentences.push_back(str(ours, " has ", fixed(measure::geometric_mean(ratios), 2),
                            " times the speed of ", peer, " in the geometric mean of ",
                            ratios.size(), ratios.size() == 1 ? " case" : " cases", ", ",
                            fixed(*worst, 2), " to ", fixed(*best, 2), "."));
  }
  return sentences;
}

measure::Plot bars(const Records& records, const NameOf& category, const NameOf& series,
                   const ValueOf& value, const NameOf& label) {
  measure::Plot plot;
  plot.categories = records.distinct(category);
  for (const auto& [name, members] : records.grouped(series)) {
    Series& drawn = plot.series.emplace_back(Series{.name = name, .kind = Series::Kind::kBars});
    for (const std::string& where : plot.categories) {
      const Record* record = members.find([&](const Record& r) { return category(r) == where; });
      drawn.y.push_back(record == nullptr ? NAN : value(*record));
      if (label) drawn.labels.push_back(record == nullptr ? "" : label(*record));
    }
  }
  return plot;
}

measure::Plot part_bars(const Records& records, const NameOf& category,
                        const std::vector<std::pair<std::string, ValueOf>>& parts) {
  measure::Plot plot;
  for (const Record& record : records) plot.categories.push_back(category(record));
  for (const auto& [name, value] : parts) {
    Series& drawn = plot.series.emplace_back(Series{.name = name, .kind = Series::Kind::kBars});
    for (const Record& record : records) drawn.y.push_back(value(record));
  }
  return plot;
}

measure::Plot lines(const Records& records, const NameOf& series, const ValueOf& x,
                    const ValueOf& y, const StyleOf& style) {
  measure::Plot plot;
  for (const auto& [name, members] : records.grouped(series)) {
    Series drawn{.name = name, .kind = Series::Kind::kLineAndPoints};
    for (const Record& record : members) {
      if (std::isnan(y(record))) continue;
      drawn.x.push_back(x(record));
      drawn.y.push_back(y(record));
    }
    if (drawn.x.empty()) continue;
    if (style) style(drawn, members.all().front());
    plot.series.push_back(std::move(drawn));
  }
  return plot;
}

measure::HeatMap heat_map(const Records& records, const NameOf& column, const NameOf& row,
                          const ValueOf& value) {
  measure::HeatMap map;
  map.columns = records.distinct(column);
  map.rows = records.distinct(row);
  for (const std::string& one : map.rows) {
    for (const std::string& other : map.columns) {
      const Record* found =
          records.find([&](const Record& r) { return row(r) == one && column(r) == other; });
      map.values.push_back(found == nullptr ? NAN : value(*found));
    }
  }
  return map;
}

ValueOf median_of(const std::string& series, double factor) {
  return [series, factor](const Record& r) { return factor * r.median(series); };
}

NameOf text_of(const std::string& fact) {
  return [fact](const Record& r) { return r.text(fact); };
}

CellOf finite(const ValueOf& value) {
  return finite(NumberOf([value](const Record& r, const Records&) { return value(r); }));
}

CellOf words(const NameOf& name) {
  return [name](const Record& r, const Records&) {
    const std::string text = name(r);
    return text.empty() ? Cell() : Cell(text);
  };
}

std::string implementation_of(const Record& record) { return record.implementation; }

}  // namespace flashstep::tools
