#include <cstdio>
#include <map>
#include <sstream>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/picture_json.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"

namespace flashstep::tools {
namespace {

measure::Table table_of(const Benchmark& benchmark, const Records& records) {
  const Schema schema = benchmark.schema(records);
  measure::Table table = fill(benchmark.title, schema, {});
  for (const Record& record : records) {
    if (!benchmark.has_row || benchmark.has_row(record, records))
      table.add_row(row_of(schema, record, records));
  }
  return table;
}

// What was asked for and cannot be done is a cell, unless nothing can.
void throw_mistake(const std::string& command, const Records& records) {
  if (records.empty()) return;
  if (records.find([](const Record& r) { return r.outcome.status != Status::kRefused; })) return;
  const Record* ours = records.find([](const Record& r) { return r.ours; });
  const Record& refused = ours != nullptr ? *ours : records.all().front();
  const std::string& why = refused.outcome.why;
  throw UserError(why.starts_with('[') ? why : str("[", command, "] ", refused.what, ": ", why));
}

// `machine`: where it was measured; empty: somewhere else.
void fill_report(const Benchmark& benchmark, const Records& records, BenchReport& report,
                 const std::vector<std::string>& notes, const std::string& machine,
                 const std::string& how) {
  const auto add = [&](std::vector<std::string> sentences) {
    for (std::string& sentence : sentences) report.table.notes.push_back(std::move(sentence));
  };
  report.table = table_of(benchmark, records);
  if (benchmark.runs_table) report.runs = benchmark.runs_table(records);
  if (benchmark.tables) report.tables = benchmark.tables(records);
  add(failures(records));
  add(notes);
  add(benchmark.how_to_read);
  if (!machine.empty()) {
    add({str(benchmark.how, benchmark.how.empty() ? "" : "; ", machine, how, ".")});
    if (measure::remembered_limits_are_too_low()) add({note("low limits")});
  }
  if (report.signal != 0) add({"Interrupted: the rest was not measured."});
  if (!report.failure.empty()) add({"Failed: " + report.failure + "."});
  if (benchmark.findings) add(benchmark.findings(records));
  if (benchmark.pictures) report.pictures = benchmark.pictures(records);
  for (NamedPicture& named : report.pictures)
    set_footnote(named, str("flashstep ", benchmark.command, machine.empty() ? "" : "; ", machine));
}

}  // namespace

void Run::tell(const std::string& line) const {
  if (progress_) progress_(line);
}

void Run::begin(size_t number, size_t count, const std::string& what) {
  check_interrupted("interrupted");
  // As it is while the GPU works, not after minutes of waiting.
  if (number > 0 && number == count / 2) take_gpu_state("during");
  tell(count == 1 ? what : str(number + 1, " of ", count, ": ", what));
}

void Run::add(std::vector<Record> of_case) {
  bool failed = false;
  for (Record& record : of_case) {
    failed = failed || record.outcome.failed();
    records_.add(std::move(record));
  }
  show_rows();
  if (failed && benchmark_.device == "cuda" && !gpu_answers())
    throw MachineError("[" + benchmark_.command + "] the GPU answers no more");
}

// For who waits at a terminal; the whole table comes at the end.
void Run::show_rows() {
  if (!progress_ || isatty(STDERR_FILENO) == 0) return;
  std::istringstream lines(measure::to_text(table_of(benchmark_, records_)));
  const size_t columns = terminal_columns(stderr);
  size_t number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    if (number >= lines_shown_) tell(columns > 0 ? line.substr(0, columns) : line);
  }
  lines_shown_ = number;
}

void Run::take_gpu_state(const char* when) {
  if (benchmark_.device != "cuda") return;
  if (const auto now = measure::gpu_state())
    gpu_state_ = str("; ", when, " the run ", measure::describe(*now));
}

BenchReport run_benchmark(const Benchmark& benchmark, const TellProgress& progress,
                          const std::function<void(Run&)>& measure) {
  const double begin = measure::steady_seconds();
  BenchReport report;
  Run run(benchmark, progress);
  try {
    measure(run);
  } catch (const Interrupted& interrupted) {
    report.signal = interrupted.signal();
  } catch (const MachineError& error) {
    report.failure = error.what();
  } catch (const c10::Error& error) {
    report.failure = "[bench] LibTorch failed: " + first_line(error.what_without_backtrace());
  }
  if (report.signal == 0 && benchmark.refusals_are_mistakes)
    throw_mistake(benchmark.command, run.records_);
  if (report.failure.empty()) report.failure = failure_of(benchmark.command, run.records_);
  if (run.gpu_state_.empty()) run.take_gpu_state("after");
  fill_report(benchmark, run.records_, report, run.notes_,
              measure::one_line(measure::describe_machine()),
              str(run.gpu_state_, "; ", human_seconds(measure::steady_seconds() - begin)));
  return report;
}

const std::vector<std::string>& notes(const std::string& name) {
  static const std::map<std::string, std::vector<std::string>> all =
      nlohmann::json::parse(note_texts());
  return all.at(name);
}
const std::string& note(const std::string& name) { return notes(name).front(); }

const std::map<std::string, std::map<std::string, std::string>>& command_presets() {
  static const std::map<std::string, std::map<std::string, std::string>> all =
      nlohmann::json::parse(preset_texts());
  return all;
}

BenchReport report_of(const Benchmark& benchmark, const Records& records) {
  BenchReport report;
  report.failure = failure_of(benchmark.command, records);
  fill_report(benchmark, records, report, {}, "", "");
  return report;
}

std::string failure_of(const std::string& command, const Records& records) {
  for (const Record& record : records) {
    if (!record.ours) continue;
    const std::string who = str("[", command, "] ", record.what,
                                record.implementation.empty() ? "" : ", ", record.implementation);
    if (record.outcome.failed()) return who + " " + record.outcome.sentence();
    if (!record.fault.empty()) return who + ": " + record.fault;
  }
  return "";
}

std::string to_text(const BenchReport& report, size_t note_columns) {
  std::string text = measure::to_text(report.table, note_columns);
  for (const NamedTable& named : report.tables) {
    text += "\n" + measure::to_text(named.table, note_columns);
  }
  return text;
}

void save(const BenchReport& report, const std::string& stem) {
  const bool has_runs = !report.runs.columns.empty();
  write_file(stem + ".json", measure::to_json(report.table));  // first: whose the others are
  write_file(stem + ".txt", to_text(report));
  std::string document = measure::to_markdown(report.table);
  for (const NamedTable& named : report.tables) {
    document += "\n" + measure::to_markdown(named.table);
    write_file(stem + "_" + named.name + ".csv", measure::to_csv(named.table));
    write_file(stem + "_" + named.name + ".json", measure::to_json(named.table));
  }
  for (const NamedPicture& named : report.pictures) {
    const std::string picture_stem = stem + "_" + named.name;
    const auto written = measure::write_picture(to_svg(named), picture_stem);
    write_file(picture_stem + ".picture.json", to_json(named));
    document += str("\n![", named.name, "](", written.svg.filename().string(), ")\n");
  }
  write_file(stem + ".md", document);
  write_file(stem + ".csv", measure::to_csv(has_runs ? report.runs : report.table));
  if (has_runs) write_file(stem + "_runs.json", measure::to_json(report.runs));
}

}  // namespace flashstep::tools
