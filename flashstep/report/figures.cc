#include "flashstep/report/figures.h"

#include <cmath>

namespace flashstep::report {
namespace {

const double kNotDrawn = std::nan("");

const Record* at(const Records& records, const NameOf& category, const std::string& name) {
  for (const Record& record : records) {
    if (category(record) == name) return &record;
  }
  return nullptr;
}

}  // namespace

measure::Plot bars(const Records& records, const NameOf& category, const NameOf& series,
                   const ValueOf& value, const NameOf& label) {
  measure::Plot plot;
  plot.categories = records.distinct(category);
  for (const auto& [name, members] : records.grouped(series)) {
    measure::Series& drawn = plot.series.emplace_back();
    drawn.name = name;
    drawn.kind = measure::Series::Kind::kBars;
    for (const std::string& where : plot.categories) {
      const Record* record = at(members, category, where);
      drawn.y.push_back(record == nullptr ? kNotDrawn : value(*record));
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
    measure::Series& drawn = plot.series.emplace_back();
    drawn.name = name;
    drawn.kind = measure::Series::Kind::kBars;
    for (const Record& record : records) drawn.y.push_back(value(record));
  }
  return plot;
}

measure::Plot lines(const Records& records, const NameOf& series, const ValueOf& x,
                    const ValueOf& y, const StyleOf& style) {
  measure::Plot plot;
  for (const auto& [name, members] : records.grouped(series)) {
    measure::Series drawn;
    drawn.name = name;
    drawn.kind = measure::Series::Kind::kLineAndPoints;
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
    const Records of_row = records.where([&](const Record& r) { return row(r) == one; });
    for (const std::string& other : map.columns) {
      const Record* record = at(of_row, column, other);
      map.values.push_back(record == nullptr ? kNotDrawn : value(*record));
    }
  }
  return map;
}

ValueOf median_of(const std::string& series, double factor) {
  return [series, factor](const Record& r) { return factor * r.median(series); };
}

std::string implementation_of(const Record& record) { return record.implementation; }

}  // namespace flashstep::report
