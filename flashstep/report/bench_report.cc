#include "flashstep/report/bench_report.h"

#include "flashstep/base/files.h"
#include "flashstep/base/text.h"

namespace flashstep::report {

void save(const BenchReport& report, const std::string& stem) {
  const bool has_runs = !report.runs.columns.empty();
  write_file(stem + ".txt", measure::to_text(report.table));
  std::string document = measure::to_markdown(report.table);
  for (const auto& [name, picture] : report.pictures) {
    const auto written = std::visit(
        [&](const auto& p) { return measure::write_plot(p, stem + "_" + name); }, picture);
    document += str("\n![", name, "](", written.svg.filename().string(), ")\n");
  }
  write_file(stem + ".md", document);
  write_file(stem + ".csv", measure::to_csv(has_runs ? report.runs : report.table));
  write_file(stem + ".json", measure::to_json(report.table));
  if (has_runs) write_file(stem + "_runs.json", measure::to_json(report.runs));
}

}  // namespace flashstep::report
