// What a benchmark gives back, and the files made of it.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "flashstep/measure/flame_graph.h"
#include "flashstep/measure/heat_map.h"
#include "flashstep/measure/lane_chart.h"
#include "flashstep/measure/plot.h"
#include "flashstep/measure/table.h"

namespace flashstep::report {

struct NamedPicture {
  std::string name;  // appended to the files' stem
  std::variant<measure::Plot, measure::HeatMap, measure::LaneChart, measure::FlameGraph> picture;
};

struct NamedTable {
  std::string name;  // appended to the files' stem
  measure::Table table;
};

struct BenchReport {
  measure::Table table;  // for people: a line a case
  measure::Table runs;   // all that was measured; without columns: nothing beyond the table
  std::vector<NamedTable> tables = {};  // further ones for people, below the first
  std::vector<NamedPicture> pictures;
  int signal = 0;       // came before the end: the report is of what was done
  std::string failure;  // of the machine: the command ends with it; empty: none
};

// Runs `work`, which measures one thing after the other. A signal, or a failure of the machine or
// of LibTorch, ends it and stands in the report, so that what was measured until then is not lost.
void measure_until_failure(BenchReport& report, const std::function<void()>& work);

// STEM.txt, .md (with the pictures), .csv, .json, _runs.json (where there are runs; .csv is theirs
// then); of each further table STEM_NAME.csv and .json; and the pictures: STEM_NAME.svg, .png and
// .picture.json, the data it is drawn from. MachineError when that fails.
void save(const BenchReport& report, const std::string& stem);

// Its tables for people, under each other.
std::string to_text(const BenchReport& report, size_t note_columns = 0);

}  // namespace flashstep::report
