#include "flashstep/profile/memory.h"

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/workload.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/memory_snapshot.h"

namespace flashstep::tools {
namespace {

// Of the memory that is there: the rest is for what lives for a moment only, and for the system.
constexpr double kUsableByRecording = 0.8;

// In a process of its own.
std::vector<Record> measure_one(const MemoryOptions& options, const Workload& workload,
                                int64_t whole_layers) {
  std::vector<Record> records;
  Outcome outcome = too_large(workload);
  if (outcome.measured()) {
    const MemoryTask task = {workload, options.warmup, options.largest, options.directory};
    outcome = run_own_process(
        {"memory"}, write_task(task), "/proc/self/exe",
        [&](const std::string& line) { records.push_back(record_from_json(line)); });
  }
  if (records.empty()) records = {{.outcome = outcome}};
  describe_records(workload, whole_layers, records);
  return records;
}

// And, where it does not fit, as many of its layers as do.
void measure_workload(const MemoryOptions& options, const Workload& workload, Run& run) {
  std::vector<Record> records = measure_one(options, workload, 0);
  const bool too_small = records.front().outcome.status == Status::kOutOfMemory;
  run.add(std::move(records));
  if (!too_small || !options.reduce) return;
  Workload fewer = workload;
  fewer.model.num_layers =
      fitting_layers(workload, kUsableByRecording * free_memory_bytes(workload.device));
  if (fewer.model.num_layers > 0) run.add(measure_one(options, fewer, workload.model.num_layers));
}

using measure::MemoryKind;

// From the bottom up: what stays, then what comes and goes; with colors of the palette.
constexpr std::pair<MemoryKind, int> kLayers[] = {
    {MemoryKind::kOther, measure::kGrey}, {MemoryKind::kParameters, 0},
    {MemoryKind::kOptimizerState, 4},     {MemoryKind::kGradients, 2},
    {MemoryKind::kActivations, 1},        {MemoryKind::kTemporaries, 5},
    {MemoryKind::kCommunication, 3}};

constexpr int kMoments = 1000;  // of moments: about the picture's pixels

std::vector<measure::AreaSpan> passes(const measure::MemoryTrace& trace, measure::EventRange window,
                                      double start) {
  std::vector<measure::AreaSpan> spans;
  for (const measure::MemoryRange& range : trace.ranges) {
    const std::string name = range.path.substr(range.path.find_last_of('/') + 1);
    const bool inside = range.events.begin >= window.begin && range.events.end <= window.end;
    if (inside && (name == "forward" || name == "backward" || name == "optimizer"))
      spans.push_back({(range.begin - start) * 1e3, (range.end - start) * 1e3, name});
  }
  return spans;
}

}  // namespace

BenchReport memory_report(const MemoryOptions& options) {
  require(options.warmup >= 0 && options.largest >= 0,
          "[memory] expected numbers of warm-up passes and of lines from 0 on, got ",
          options.warmup, " and ", options.largest);
  const std::vector<Workload> workloads = workloads_of(options.axes);
  return run_benchmark(memory_benchmark(options.warmup), options.progress, [&](Run& run) {
    for (size_t i = 0; i < workloads.size(); ++i) {
      const Workload& workload = workloads[i];
      run.begin(i, workloads.size(),
                describe(workload) + ", attention " + workload.model.attention);
      measure_workload(options, workload, run);
    }
  });
}

BenchReport memory_trace_report(const measure::MemoryTrace& trace, const std::string& name,
                                int64_t largest) {
  const auto peak = measure::peak(trace, trace.all());
  BenchReport report;
  report.table.title = "Peak of " + name;
  report.table.rows.emplace_back();
  const auto add = [&](const char* what, int64_t bytes) {
    report.table.columns.push_back(measure::number_column(what, "MiB", 2));
    report.table.rows[0].emplace_back(static_cast<double>(bytes) / kMiB);
  };
  add("peak", measure::total(peak.bytes));
  for (size_t kind = 0; kind < peak.bytes.size(); ++kind)
    add(measure::name_of(static_cast<MemoryKind>(kind)), peak.bytes[kind]);
  report.table.notes = {str(with_commas(static_cast<int64_t>(trace.events.size())), " events of ",
                            with_commas(static_cast<int64_t>(trace.allocations.size())),
                            " allocations.")};
  const bool with_shape = trace.shapes.size() > 1;
  report.tables = {{"largest", fill("Largest allocations", allocation_schema(with_shape),
                                    largest_allocations(trace, trace.all(), largest))}};
  return report;
}

BenchReport snapshot_report(const std::filesystem::path& snapshot, int64_t largest,
                            const std::string& directory) {
  const MappedFile file(snapshot);
  const measure::MemoryTrace trace = measure::read_snapshot(file.bytes(), snapshot.string());
  BenchReport report = memory_trace_report(trace, snapshot.filename().string(), largest);
  if (directory.empty()) return report;
  measure::write_plot(
      memory_timeline(trace, trace.all(), "Memory of " + snapshot.filename().string(),
                      "flashstep memory --snapshot " + snapshot.string()),
      std::filesystem::path(directory) / "memory_timeline_snapshot");
  return report;
}

measure::AreaChart memory_timeline(const measure::MemoryTrace& trace, measure::EventRange window,
                                   const std::string& title, const std::string& footnote) {
  const auto moments = measure::timeline(trace, window, kMoments);
  const auto peak = measure::peak(trace, window);
  const auto most = static_cast<double>(measure::total(peak.bytes));
  const double unit = most >= 4 * kGiB ? kGiB : kMiB;
  const double start = moments.front().seconds;
  measure::AreaChart chart;
  chart.title = title;
  chart.subtitle = str("Peak ", human_bytes(static_cast<uint64_t>(most)));
  if (trace.timed)
    chart.subtitle += str(" after ", fixed((peak.seconds - start) * 1e3, 1), " ms of the host");
  chart.footnote = footnote;
  chart.x_label =
      trace.timed ? "ms of the host, which runs ahead of a GPU" : "allocations and frees";
  chart.y_label = unit == kGiB ? "GiB of tensors" : "MiB of tensors";
  const double scale = trace.timed ? 1e3 : 1;
  for (const auto& moment : moments) chart.x.push_back((moment.seconds - start) * scale);
  for (const auto& [kind, color] : kLayers) {
    measure::AreaLayer layer = {measure::name_of(kind), color, {}};
    for (const auto& moment : moments) {
      layer.values.push_back(static_cast<double>(moment.bytes[static_cast<size_t>(kind)]) / unit);
    }
    chart.layers.push_back(std::move(layer));
  }
  if (trace.timed) chart.spans = passes(trace, window, start);
  return chart;
}

}  // namespace flashstep::tools
