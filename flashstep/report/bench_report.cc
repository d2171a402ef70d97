#include "flashstep/report/bench_report.h"

#include <c10/util/Exception.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/picture_json.h"

namespace flashstep::report {

void measure_until_failure(BenchReport& report, const std::function<void()>& work) {
  try {
    work();
  } catch (const Interrupted& interrupted) {
    report.signal = interrupted.signal();
  } catch (const MachineError& error) {
    if (report.failure.empty()) report.failure = error.what();
  } catch (const c10::Error& error) {
    const std::string what = first_line(error.what_without_backtrace());
    if (report.failure.empty()) report.failure = "[bench] LibTorch failed: " + what;
  }
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
  write_file(stem + ".txt", to_text(report));
  std::string document = measure::to_markdown(report.table);
  for (const NamedTable& named : report.tables) {
    document += "\n" + measure::to_markdown(named.table);
    write_file(stem + "_" + named.name + ".csv", measure::to_csv(named.table));
    write_file(stem + "_" + named.name + ".json", measure::to_json(named.table));
  }
  for (const NamedPicture& named : report.pictures) {
    const std::string picture_stem = stem + "_" + named.name;
    const auto written = std::visit(
        [&](const auto& p) { return measure::write_plot(p, picture_stem); }, named.picture);
    write_file(picture_stem + ".picture.json", to_json(named));
    document += str("\n![", named.name, "](", written.svg.filename().string(), ")\n");
  }
  write_file(stem + ".md", document);
  write_file(stem + ".csv", measure::to_csv(has_runs ? report.runs : report.table));
  write_file(stem + ".json", measure::to_json(report.table));
  if (has_runs) write_file(stem + "_runs.json", measure::to_json(report.runs));
}

}  // namespace flashstep::report
