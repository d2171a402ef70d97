// All measurements of a preset as one document: what this machine can run is run, what has a result
// is taken from it, and the answers are computed from the results.
//
//   DIRECTORY/report.html, report.md, report.pdf    the document
//   DIRECTORY/tables/, pictures/                    each table and picture by itself
//   DIRECTORY/results/                              what it is made of: a JSON file a measurement
//   DIRECTORY/runs/, logs/, data/                   files of the measurements, what they printed,
//   and
//                                                   the inputs that were made for them
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/benchmark.h"

namespace flashstep::report {

struct ReportOptions {
  std::string preset = "quick";   // "quick", "2024", "2025", "2026", "all"
  std::vector<std::string> only;  // sections by name; empty: all
  std::filesystem::path directory = "report";
  bool all_sections = false;  // redraw_report: also those that nobody asked for, as not measured
  bool any_machine = false;   // a result of another machine will do: RunOptions has it
  double most_seconds = 0;    // begins nothing that is expected to end later; 0: no such limit
  bool pdf = true;            // where there is a Chromium
  std::vector<std::string> program = {"/proc/self/exe"};  // a flashstep, that measures
  // Expected seconds of what is done, and of all; what is being done.
  std::function<void(double done, double total, const std::string& note)> progress;
  // Gets the first answer that a result gives by itself, while the others are still measured.
  std::function<void(const std::string& line)> told;
};

struct ReportOutcome {
  int64_t measured = 0, reused = 0;
  std::vector<std::string> failed;      // "ddp_2025: ended with exit code 1: out of memory"
  std::vector<std::string> later;       // not begun for want of time; the same command goes on
  std::vector<std::string> left_out;    // "ddp_2025: needs 2 GPUs, this machine has none"
  std::vector<std::string> unreadable;  // a sentence for each result file that is damaged, or newer
  std::vector<std::string> remarks;     // why there is no PDF
  std::vector<std::string> written;     // documents
  int64_t questions = 0, answered = 0;
  int signal = 0;  // came before the end: the document is of what was there
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

}  // namespace flashstep::report
