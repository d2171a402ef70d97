// What a benchmark gives back, and the files made of it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "flashstep/measure/heat_map.h"
#include "flashstep/measure/lane_chart.h"
#include "flashstep/measure/plot.h"
#include "flashstep/measure/table.h"

namespace flashstep::report {

struct NamedPicture {
  std::string name;  // appended to the files' stem
  std::variant<measure::Plot, measure::HeatMap, measure::LaneChart> picture;
};

struct BenchReport {
  measure::Table table;  // for people: a line a case
  measure::Table runs;   // all that was measured; without columns: nothing beyond the table
  std::vector<NamedPicture> pictures;
  int signal = 0;  // came before the end: the report is of what was done
};

// STEM.txt, .md (with the pictures), .csv, .json, _runs.json (where there are runs; .csv is theirs
// then), and the pictures. MachineError when that fails.
void save(const BenchReport& report, const std::string& stem);

}  // namespace flashstep::report
