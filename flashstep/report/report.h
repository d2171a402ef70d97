// All measurements of a preset as one document: what this machine can run is run, what has a result
// is taken from it, and the answers are computed from the results.
//
//   DIRECTORY/report.html, report.md, report.pdf    the document
//   DIRECTORY/tables/, pictures/                    each table and picture by itself
//   DIRECTORY/results/                              what it is made of: a JSON file a measurement
//   DIRECTORY/runs/, logs/, data/                   files of the measurements, what they printed,
//                                                   and the inputs that were made for them
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/report/result.h"

namespace flashstep::tools {

// Runs the measurements of a report: those that have a result are left, the others become child
// processes of this program, one after the other.
struct RunOptions {
  std::filesystem::path directory = "report";
  std::vector<std::string> program = {"/proc/self/exe"};  // a flashstep, that measures
  MeasuredVersion version;
  measure::Machine machine;
  // A result of another machine will do, if the same sources made it by the same command: where
  // machines come and go, each measures what is left.
  bool any_machine = false;
  // Nothing is begun that is expected to end later than so many seconds from the start; 0: all is.
  double most_seconds = 0;
  // While it measures: expected seconds of what is done, and of all; what is being done.
  std::function<void(double done, double total, const std::string& note)> progress;
  std::function<void(const Result& result)> finished;  // gets each, once it is on the disk
};

struct RunOutcome {
  int64_t measured = 0, reused = 0;
  std::vector<std::string> failed;  // "ddp_2025: ended with exit code 1: out of memory"
  std::vector<std::string> later;   // not begun: "ddp_2025: expected to take 500 s"
  std::vector<std::string> keys;    // of all measurements that were asked for
  int signal = 0;                   // came before the end
};

// Every result is on the disk before the next measurement begins. One that fails leaves a result
// that says so, and the next one follows. A damaged result file is renamed to FILE.damaged and
// measured anew. MachineError where the results cannot be written.
RunOutcome run_measurements(const std::vector<Measurement>& measurements,
                            const RunOptions& options);

struct ReportOptions : RunOptions {  // `finished` is the report's own
  std::string preset = "quick";      // "quick", "2024", "2025", "2026", "all"
  std::vector<std::string> only;     // sections by name; empty: all
  bool all_sections = false;  // redraw_report: also those that nobody asked for, as not measured
  bool pdf = true;            // where there is a Chromium
  // Gets the first answer that a result gives by itself, while the others are still measured.
  std::function<void(const std::string& line)> told;
};

struct ReportOutcome : RunOutcome {
  std::vector<std::string> left_out;    // "ddp_2025: needs 2 GPUs, this machine has none"
  std::vector<std::string> unreadable;  // a sentence for each result file that is damaged, or newer
  std::vector<std::string> remarks;     // why there is no PDF
  std::vector<std::string> written;     // documents
  int64_t questions = 0, answered = 0;
};

// UserError for an unknown preset or section (with the nearest one), for a directory that cannot be
// written, and while another report writes it. Results on the disk are never lost.
ReportOutcome make_report(const ReportOptions& options);

// The document anew from DIRECTORY/results, without measuring, on any machine: from what can be
// read of them. UserError where there is no result.
ReportOutcome redraw_report(const ReportOptions& options);

// Two reports beside each other: a line for each number that both measured with a spread, the
// change from A to B, and whether it exceeds the noise: their spans (p10 to p90, or the mean and
// twice its deviation to either side) have nothing in common. UserError where one has no results.
BenchReport compare_reports(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace flashstep::tools
