// Pictures of records: what stands where is said by functions of a record.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/measure/heat_map.h"
#include "flashstep/measure/plot.h"
#include "flashstep/report/record.h"

namespace flashstep::report {

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
std::string implementation_of(const Record& record);

}  // namespace flashstep::report
