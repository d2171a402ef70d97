#include "flashstep/report/memory.h"

#include <exception>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

// Of the memory that is there: the rest is for what lives for a moment only, and for the system.
constexpr double kUsableByRecording = 0.8;

// Case after case, each in a process of its own, and what there is is kept.
class Cases {
 public:
  explicit Cases(const MemoryOptions& options) : options_(options) {}

  void measure(const Workload& workload) {
    MemoryResult result = measure_one(workload);
    const bool is_oom = is_out_of_memory(result);
    results_.push_back(std::move(result));
    if (!is_oom || !options_.reduce) return;
    Workload fewer = workload;
    const double room = kUsableByRecording * free_memory_bytes(workload.device);
    fewer.model.num_layers = fitting_layers(workload, room);
    if (fewer.model.num_layers == 0) return;
    MemoryResult reduced = measure_one(fewer);
    reduced.whole_layers = workload.model.num_layers;
    results_.push_back(std::move(reduced));
  }

  const std::vector<MemoryResult>& results() const { return results_; }
  const std::exception_ptr& mistake() const { return mistake_; }
  const std::string& failure() const { return failure_; }
  void note_failure(const std::string& sentence) {
    if (failure_.empty()) failure_ = sentence;
  }

 private:
  static bool is_out_of_memory(const MemoryResult& result) {
    return result.failure.starts_with("OOM");
  }

  MemoryResult measure_one(const Workload& workload) {
    MemoryResult result;
    result.task = {workload, options_.warmup, options_.largest, options_.directory};
    if (options_.progress)
      options_.progress(describe(workload) + ", attention " + workload.model.attention);
    const Outcome at_once = too_large(workload);
    if (!at_once.measured()) {
      result.failure = at_once.sentence();
      return result;
    }
    RankJob job;
    job.ranks = 1;
    job.arguments = {"memory"};
    job.task = write_json(result.task);
    job.program = job.launcher = options_.program;
    const auto kills = measure::oom_kills();
    const RanksOutcome ended = run_ranks(job);
    if (!ended.results.empty()) return memory_result_from_json(ended.results.back());
    const Outcome outcome = outcome_of_ranks(ended.failure, ended.exit_code, 1, kills);
    result.failure = outcome.sentence();
    // What was asked for and cannot be done is a cell, unless nothing can.
    if (outcome.status == Status::kRefused && mistake_ == nullptr)
      mistake_ = std::make_exception_ptr(UserError(outcome.why));
    if (outcome.failed()) note_failure(str("[memory] ", describe(workload), " ", result.failure));
    return result;
  }

  const MemoryOptions& options_;
  std::vector<MemoryResult> results_;
  std::exception_ptr mistake_;
  std::string failure_;  // the machine's first
};

}  // namespace

MemoryOptions memory_preset(const std::string& name) {
  MemoryOptions options;
  WorkloadAxes& axes = options.axes;
  axes.modes = {"forward", "step"};
  if (name.empty()) return options;
  require(name == "2024" || name == "2025" || name == "2026",
          "[memory] expected a handout of 2024, 2025 or 2026, got \"", name, "\"");
  axes.sizes = {name == "2026" ? "xl26" : "2.7B"};
  axes.contexts = {128};
  if (name == "2025") axes.contexts = {128, 256, 512};
  if (name == "2026") axes.contexts = {128, 2048};
  axes.precisions = {"fp32", "bf16"};
  if (name == "2024") axes.common.batch_size = 16;
  return options;
}

BenchReport memory_report(const MemoryOptions& options) {
  require(options.warmup >= 0 && options.largest >= 0,
          "[memory] expected numbers of warm-up passes and of lines from 0 on, got ",
          options.warmup, " and ", options.largest);
  const std::vector<Workload> workloads = workloads_of(options.axes);
  Cases cases(options);
  BenchReport ended;
  measure_until_failure(ended, [&] {
    for (const Workload& workload : workloads) {
      check_interrupted("interrupted");
      cases.measure(workload);
    }
  });
  if (ended.failure.empty()) ended.failure = cases.failure();
  bool any = false;
  for (const MemoryResult& result : cases.results()) any = any || result.measured();
  if (!any && cases.mistake() != nullptr) std::rethrow_exception(cases.mistake());
  BenchReport report = memory_tables(cases.results());
  report.signal = ended.signal;
  report.failure = ended.failure;
  const std::string machine = measure::one_line(measure::describe_machine());
  auto& notes = report.table.notes;
  notes.insert(notes.end() - 1, str("One pass after ", options.warmup, "; ", machine, "."));
  if (report.signal != 0) notes.emplace_back("Interrupted: the rest was not measured.");
  for (NamedPicture& named : report.pictures) {
    std::get<measure::Plot>(named.picture).footnote = "flashstep memory; " + machine;
  }
  return report;
}

BenchReport snapshot_report(const std::filesystem::path& snapshot, int64_t largest,
                            const std::string& directory) {
  const MappedFile file(snapshot);
  const measure::MemoryTrace trace = measure::read_snapshot(file.bytes(), snapshot.string());
  const auto peak = measure::peak(trace, trace.all());
  BenchReport report;
  report.table.title = "Peak of " + snapshot.filename().string();
  report.table.columns = {measure::number_column("peak", "MiB", 2)};
  std::vector<measure::Cell> row = {static_cast<double>(measure::total(peak.bytes)) / kMiB};
  for (int kind = 0; kind < measure::kMemoryKinds; ++kind) {
    report.table.columns.push_back(
        measure::number_column(measure::name_of(static_cast<measure::MemoryKind>(kind)), "MiB", 2));
    row.emplace_back(static_cast<double>(peak.bytes[static_cast<size_t>(kind)]) / kMiB);
  }
  report.table.add_row(std::move(row));
  report.table.notes = {str(with_commas(static_cast<int64_t>(trace.events.size())), " events of ",
                            with_commas(static_cast<int64_t>(trace.allocations.size())),
                            " allocations.")};
  measure::Table table;
  table.title = "Largest allocations";
  table.columns = {measure::number_column("bytes", "MiB", 3), measure::integer_column("count")};
  for (const char* name : {"kind", "range", "made by", "source"}) {
    table.columns.push_back(measure::text_column(name));
  }
  for (const LargeAllocation& a : largest_allocations(trace, trace.all(), largest)) {
    table.add_row(
        {static_cast<double>(a.bytes) / kMiB, a.count, a.kind, a.range, a.maker, a.source});
  }
  report.tables = {{"largest", std::move(table)}};
  if (!directory.empty()) {
    measure::write_plot(
        memory_timeline(trace, trace.all(), "Memory of " + snapshot.filename().string(),
                        "flashstep memory --snapshot " + snapshot.string()),
        std::filesystem::path(directory) / "memory_timeline_snapshot");
  }
  return report;
}

}  // namespace flashstep::report
