// Reports for Python: what is measured, stored or recorded, as JSON of tables and pictures.
//   {"text": "...", "about": {"command": ...}, "pictures": {NAME: SVG},
//    "tables": {NAME: {"title": ..., "columns": {"time (ms)": [...]}, "notes": [...], "text":
//    ...}}}
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/bindings/definitions.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/memory_observer.h"
#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/profile/memory.h"
#include "flashstep/profile/profile.h"
#include "flashstep/report/result.h"
#include "flashstep/train/loss_plot.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;
using bindings::for_python;
using PythonJson = nlohmann::ordered_json;

std::string dumped(const PythonJson& json) {
  return json.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
}

// What is not finite is an object, which no other cell is: JSON has no number for it.
PythonJson python_cell(const measure::Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value())) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell.value())) return *whole;
  const auto* value = std::get_if<double>(&cell.value());
  if (value == nullptr) return nullptr;
  if (std::isfinite(*value)) return *value;
  return {{"number", std::isnan(*value) ? "nan" : *value > 0 ? "inf" : "-inf"}};
}

PythonJson python_table(const measure::Table& table) {
  PythonJson columns = PythonJson::object();
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const measure::Column& column = table.columns[i];
    const std::string head = column.name + (column.unit.empty() ? "" : " (" + column.unit + ")");
    PythonJson& cells = columns[head] = PythonJson::array();
    for (const auto& row : table.rows) cells.push_back(python_cell(row[i]));
  }
  return {{"title", table.title},
          {"columns", std::move(columns)},
          {"notes", table.notes},
          {"text", measure::to_text(table)}};
}

PythonJson python_report(const Result& result) {
  PythonJson json = {{"text", ""},
                     {"about", PythonJson::object()},
                     {"tables", PythonJson::object()},
                     {"pictures", PythonJson::object()}};
  std::vector<std::string> texts;
  for (const NamedTable& named : result.tables) {
    texts.push_back(measure::to_text(named.table));
    json["tables"][named.name] = python_table(named.table);
  }
  json["text"] = join(texts, "\n");
  for (const NamedPicture& named : result.pictures) json["pictures"][named.name] = to_svg(named);
  const Provenance& made = result.made;
  for (const auto& [name, value] :
       {std::pair("command", made.command), std::pair("machine", made.machine),
        std::pair("version", made.version), std::pair("measured at", made.measured_at),
        std::pair("failure", result.failure)}) {
    if (!value.empty()) json["about"][name] = value;
  }
  return json;
}

PythonJson python_report(const BenchReport& report, const std::string& name) {
  Result result;
  result.tables = {{name, report.table}};
  result.pictures = report.pictures;
  result.tables.insert(result.tables.end(), report.tables.begin(), report.tables.end());
  return python_report(result);
}

std::string report_of_trace(std::string_view file, int64_t top) {
  BenchReport report = trace_report(fs::path(file), top);
  // Named after the case, of which there is one.
  for (NamedPicture& named : report.pictures)
    named.name = named.name.substr(0, named.name.find('_'));
  return dumped(python_report(report, "profile"));
}

PythonJson of_memory(const measure::MemoryTrace& trace, const std::string& name, int64_t largest) {
  PythonJson json = python_report(memory_trace_report(trace, name, largest), "memory");
  json["pictures"]["timeline"] =
      measure::to_svg(memory_timeline(trace, trace.all(), "Memory of " + name, ""));
  return json;
}

std::string report_of_snapshot(std::string_view file, int64_t largest) {
  const fs::path path(file);
  const MappedFile snapshot(path);
  const auto trace = measure::read_snapshot(snapshot.bytes(), path.string());
  return dumped(of_memory(trace, path.filename().string(), largest));
}

// What a command wrote: a table's file, or the folder of --out.
std::string report_of_files(std::string_view name) {
  const fs::path path(name);
  Result result;
  if (fs::is_directory(path))
    result = collect(path);
  else
    result.tables = {{path.stem(), measure::table_from_json(read_file(path), path.string())}};
  require(!result.tables.empty() || !result.pictures.empty(),
          "[report] expected tables or pictures that a command wrote by --out, got none in ",
          path.string());
  return dumped(python_report(result));
}

// Of `flashstep report`, by measurement.
std::string reports_of_results(std::string_view directory) {
  StoredResults stored = read_results(fs::path(directory));
  if (!stored.complaints.empty()) throw UserError(stored.complaints.front());
  require(!stored.results.empty(), "[report] expected results of `flashstep report` in ", directory,
          "/results, got none");
  PythonJson json = PythonJson::object();
  for (const Result& result : current(std::move(stored.results), {}))
    json[result.measurement] = python_report(result);
  return dumped(json);
}

std::string curve_of_run(std::string_view run, std::string_view field) {
  const fs::path path = fs::path(run) / "metrics.jsonl";
  const RunCurves curves = parse_curves(read_file(path), std::string(field), path.string());
  require(!curves.steps.empty(), "[report] expected the field \"", field, "\" in ", path.string(),
          ", got none");
  measure::Table table;
  table.title = str(field, " of ", path.parent_path().string());
  table.columns = {measure::integer_column("step"),
                   measure::number_column(std::string(field), "", 4)};
  for (size_t i = 0; i < curves.steps.size(); ++i)
    table.add_row({static_cast<int64_t>(curves.steps[i]), curves.values[i]});
  return dumped(python_table(table));
}

std::string plot_of_runs(std::vector<std::string> runs, std::string_view field) {
  return measure::to_svg(plot_runs({runs.begin(), runs.end()}, std::string(field)));
}

measure::MemoryKind kind_named(const std::string& name) {
  std::vector<std::string> names;
  for (int kind = 0; kind < measure::kMemoryKinds; ++kind) {
    names.emplace_back(measure::name_of(static_cast<measure::MemoryKind>(kind)));
    if (names.back() == name) return static_cast<measure::MemoryKind>(kind);
  }
  throw UserError(str("[profiling] expected one of ", join(names), ", got \"", name, "\""));
}

// What tensors occupy from its making on.
class MemoryRecording : public torch::CustomClassHolder {
 public:
  explicit MemoryRecording(const std::string& device) : observer_(at::Device(device).type()) {}

  void label(std::string kind, std::vector<at::Tensor> tensors) {
    observer_.label(kind_named(kind), tensors);
  }
  void stop() {
    if (!trace_) trace_ = observer_.take();
  }
  std::string report(int64_t largest) {
    require(trace_ && !trace_->events.empty(),
            "[profiling] expected a recording that has ended and saw a tensor's memory");
    return dumped(of_memory(*trace_, "the recording", largest));
  }

 private:
  measure::MemoryObserver observer_;
  std::optional<measure::MemoryTrace> trace_;
};

c10::intrusive_ptr<MemoryRecording> record_memory(std::string device) {
  return c10::make_intrusive<MemoryRecording>(device);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(flashstep, library) {
  bindings::Definitions definitions(library);
  definitions.plain("report_of_trace(str file, int top) -> str", &report_of_trace);
  definitions.plain("report_of_snapshot(str file, int largest) -> str", &report_of_snapshot);
  definitions.plain("report_of_files(str path) -> str", &report_of_files);
  definitions.plain("reports_of_results(str directory) -> str", &reports_of_results);
  definitions.plain("curve_of_run(str run, str field) -> str", &curve_of_run);
  definitions.plain("plot_of_runs(str[] runs, str field) -> str", &plot_of_runs);
  library.class_<MemoryRecording>("MemoryRecording")
      .def(torch::init(for_python(&record_memory)))
      .def("label", for_python(&MemoryRecording::label))
      .def("stop", for_python(&MemoryRecording::stop))
      .def("report", for_python(&MemoryRecording::report));
}

}  // namespace flashstep::tools
