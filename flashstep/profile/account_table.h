// What accounts have in common: how they write numbers, and the table that most of them fill.
#pragma once

#include <cstdint>
#include <string>

#include "flashstep/base/text.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/measure/table.h"
#include "flashstep/profile/account.h"

namespace flashstep::tools {

// Four significant digits: "3,517", "0.01235", "1.8e+11" from 10^13 on.
inline std::string number(double value, int digits = 4) {
  return measure::display(value, {measure::NumberFormat::Style::kSignificant, digits});
}

// A count that was computed in double. UserError where int64_t cannot hold it.
inline int64_t counted(double value, const char* what) {
  constexpr double kMost = 9e18;  // a little below 2^63
  require(value < kMost, "[account] expected at most 9e18 ", what, ", got ", value);
  return static_cast<int64_t>(value);
}

inline measure::Table empty_table(std::string title, std::vector<measure::Column> columns,
                                  std::vector<std::string> notes = {}) {
  return {std::move(title), std::move(columns), /*rows=*/{}, std::move(notes)};
}

// A line a quantity, each with its own unit.
inline measure::Table quantity_table(std::string title, std::vector<std::string> notes = {}) {
  return empty_table(
      std::move(title),
      {measure::text_column("quantity"), significant("value", "", 5), measure::text_column("unit")},
      std::move(notes));
}

// A note that is a sentence of these parts.
template <typename... Parts>
void derive(measure::Table& table, const Parts&... parts) {
  table.notes.push_back(str(parts...));
}

// UserError where it is none of them.
void check_one_of(const char* what, const std::string& got,
                  const std::vector<std::string>& allowed);

}  // namespace flashstep::tools
