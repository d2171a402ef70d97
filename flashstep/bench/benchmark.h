// One run of a benchmark. A benchmark says what it measures and how that is shown; here is what
// they have in common: progress, the table while it fills, interruptions, what becomes of failures,
// notes, pictures and files.
//
//   Benchmark benchmark;
//   benchmark.command = "bench x";
//   benchmark.title = "X";
//   benchmark.schema = [](const Records&) -> Schema { return {...}; };
//   return run_benchmark(benchmark, progress, [&](Run& run) {
//     for (size_t i = 0; i < cases.size(); ++i) {
//       run.begin(i, cases.size(), describe(cases[i]));
//       run.add(measure(cases[i]));
//     }
//   });
//
// What becomes of failures, everywhere:
//   - memory that is too small, and what an implementation refuses, is a cell;
//   - a failure of ours, of a process or a rank that measures, and a wrong result of ours end the
//     command with exit code 1, after the rest has been measured and shown;
//   - what a baseline in a process of its own cannot do is a cell;
//   - a GPU that answers no more, and a signal, end the measuring: what there is is shown;
//   - where nothing was measured because all was refused, that is the caller's mistake.
//
// Names and ranges of single options are checked where they are given (apps/bench*.cc); a benchmark
// checks what depends on the machine or on several of them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "flashstep/bench/record.h"
#include "flashstep/bench/schema.h"
#include "flashstep/measure/flame_graph.h"
#include "flashstep/measure/heat_map.h"
#include "flashstep/measure/lane_chart.h"
#include "flashstep/measure/plot.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

// ---- What a benchmark gives back

struct NamedPicture {
  std::string name;  // appended to the files' stem
  // A text: the SVG document of a picture that was read as it had been drawn (picture_json.h).
  std::variant<measure::Plot, measure::HeatMap, measure::LaneChart, measure::FlameGraph,
               std::string>
      picture;
};

template <typename Picture>
NamedPicture named_picture(std::string name, Picture picture, std::string title,
                           std::string subtitle) {
  picture.title = std::move(title);
  picture.subtitle = std::move(subtitle);
  return {std::move(name), std::move(picture)};
}

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

// STEM.txt, .md (with the pictures), .csv, .json, _runs.json (where there are runs; .csv is theirs
// then); of each further table STEM_NAME.csv and .json; and the pictures: STEM_NAME.svg, .png and
// .picture.json, the data it is drawn from. MachineError when that fails.
void save(const BenchReport& report, const std::string& stem);

// Its tables for people, under each other.
std::string to_text(const BenchReport& report, size_t note_columns = 0);

// ---- Its run

using TellProgress = std::function<void(const std::string& line)>;  // may be empty

struct Benchmark {
  std::string command;  // "bench norm"
  std::string title;    // of the table
  std::string device = "cpu";
  std::function<Schema(const Records&)> schema;  // of the table
  // In it; empty: every record. `all` holds the very record.
  std::function<bool(const Record& record, const Records& all)> has_row = nullptr;
  std::function<measure::Table(const Records&)> runs_table = nullptr;  // all that was measured
  // Where nothing was measured because all was refused, that is the caller's mistake.
  bool refusals_are_mistakes = true;
  std::vector<std::string> how_to_read = {};
  std::string how = {};  // it was measured: "Medians of 10 steps in 2 turns"
  std::function<std::vector<std::string>(const Records&)> findings = nullptr;  // facts, sentences
  std::function<std::vector<NamedPicture>(const Records&)> pictures = nullptr;
  // Tables below the first one.
  std::function<std::vector<NamedTable>(const Records&)> tables = nullptr;
};

class Run {
 public:
  Run(const Benchmark& benchmark, const TellProgress& progress)
      : benchmark_(benchmark), progress_(progress) {}

  // Says so. Interrupted if a signal came.
  void begin(size_t number, size_t count, const std::string& what);
  void tell(const std::string& line) const;
  // The records of a case, all of them; MachineError when the GPU answers no more.
  void add(std::vector<Record> of_case);
  void add(Record record) { add(std::vector<Record>{std::move(record)}); }
  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }

  const Records& records() const { return records_; }

 private:
  friend BenchReport run_benchmark(const Benchmark&, const TellProgress&,
                                   const std::function<void(Run&)>&);
  void show_rows();  // that are new
  void take_gpu_state(const char* when);

  const Benchmark& benchmark_;
  const TellProgress& progress_;
  Records records_;
  std::vector<std::string> notes_;
  std::string gpu_state_;   // in the middle of the run, or after one of a single case
  size_t lines_shown_ = 0;  // of the table
};

// A signal, or a failure of the machine or of LibTorch, ends the measuring and stands in the
// report, so that what was measured until then is not lost.
BenchReport run_benchmark(const Benchmark& benchmark, const TellProgress& progress,
                          const std::function<void(Run&)>& measure);

// A sentence or more below a table: how to read it (notes.json).
const std::string& note(const std::string& name);
const std::vector<std::string>& notes(const std::string& name);  // of several texts

// The report of records that were measured before.
BenchReport report_of(const Benchmark& benchmark, const Records& records);

// The first failure of ours, or what is wrong with it; empty: none.
std::string failure_of(const std::string& command, const Records& records);

std::string_view note_texts();  // notes.json: what stands below tables

// presets.json: the flags that a command's --preset stands for, by the names of both.
const std::map<std::string, std::map<std::string, std::string>>& command_presets();
std::string_view preset_texts();

}  // namespace flashstep::tools
