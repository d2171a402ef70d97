// Tables of records: a column is one line with its cell.
//
//   const Schema kDdp = {
//       {text_column("wrapper"), implementation()},
//       {number_column("step", "ms", 2), median("total", 1e3)},
//       {number_column("of none", "ms", 2), of("none", median("total", 1e3))},
//       {number_column("peak memory", "GiB", 3), fact("peak_bytes", 1 / kGiB)},
//   };
//   const measure::Table table = fill("Data parallelism", kDdp, records);
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/bench/record.h"
#include "flashstep/measure/heat_map.h"
#include "flashstep/measure/plot.h"

namespace flashstep::tools {

// A cell of a record, which stands among all. What was not measured is an empty cell.
using CellOf = std::function<measure::Cell(const Record& record, const Records& all)>;
using NumberOf = std::function<double(const Record& record, const Records& all)>;

struct SchemaColumn {
  measure::Column column;
  CellOf cell;
};
using Schema = std::vector<SchemaColumn>;

std::vector<measure::Cell> row_of(const Schema& schema, const Record& record, const Records& all);
measure::Table fill(const std::string& title, const Schema& schema, const Records& records);
Schema operator+(Schema a, const Schema& b);

// ---- Cells

CellOf implementation();
// A fact, or of the key, as it is; a number times `factor`.
CellOf fact(const std::string& name, double factor = 1);
CellOf median(const std::string& series, double factor = 1);
CellOf quantile(const std::string& series, double q, double factor = 1);
CellOf mean(const std::string& series, double factor = 1);
CellOf deviation(const std::string& series, double factor = 1);  // of two values or more
CellOf count(const std::string& series);
// What became of it, in a word, where it was not measured.
CellOf or_word(const CellOf& cell);
// Nothing where the series was not measured.
CellOf if_has(const std::string& series, const CellOf& cell);
// Of the same case by another implementation.
CellOf of(const std::string& implementation, const CellOf& cell);
// An empty cell for what is not finite.
CellOf finite(const NumberOf& number);

// A fact over the median of a series: bytes a second, or of the seconds that a limit would take.
NumberOf rate(const std::string& fact, const std::string& series, double factor = 1);

// Columns of the key.
SchemaColumn text_key(const std::string& name);
SchemaColumn integer_key(const std::string& name);

// A scientific column for errors, one of significant digits.
measure::Column error_column(const std::string& name, const std::string& unit = "");
measure::Column significant(const std::string& name, const std::string& unit, int digits = 4);

// Another implementation's median over this one's: above 1, this one is faster. NaN without both.
double times_as_fast(const Record& record, const Records& all, const std::string& implementation,
                     const std::string& series);

// Of every record for which that is a number.
std::vector<double> finite_numbers(const Records& records, const NumberOf& number);

// ---- Sentences

// Why cells are empty: a sentence for each implementation and reason.
std::vector<std::string> failures(const Records& records);

// "flashstep is at least as fast as naive; ...": for each other implementation, by the medians of
// the cases in which both have one.
std::vector<std::string> speed_beside_others(const Records& records, const std::string& ours,
                                             const std::string& series);

// Bytes as reports write them.

constexpr double kGiB = 1073741824.0, kMiB = 1048576.0, kGB = 1e9, kMB = 1e6;

// Pictures of records: what stands where is said by functions of a record.

using NameOf = std::function<std::string(const Record&)>;
using ValueOf = std::function<double(const Record&)>;  // NaN: nothing is drawn
using StyleOf = std::function<void(measure::Series& series, const Record& first)>;

// A group of bars for each category, in it a bar for each series. `label` stands above a bar;
// without one its value.
measure::Plot bars(const Records& records, const NameOf& category, const NameOf& series,
                   const ValueOf& value, const NameOf& label = nullptr);
// Several values of each record: the record is the category.
measure::Plot part_bars(const Records& records, const NameOf& category,
                        const std::vector<std::pair<std::string, ValueOf>>& parts);
// A line for each series.
measure::Plot lines(const Records& records, const NameOf& series, const ValueOf& x,
                    const ValueOf& y, const StyleOf& style = nullptr);
measure::HeatMap heat_map(const Records& records, const NameOf& column, const NameOf& row,
                          const ValueOf& value);

ValueOf median_of(const std::string& series, double factor);
NameOf text_of(const std::string& fact);
// Cells of them: empty for what is not finite, and for no text.
CellOf finite(const ValueOf& value);
CellOf words(const NameOf& name);
std::string implementation_of(const Record& record);

}  // namespace flashstep::tools
