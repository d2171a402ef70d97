#include "flashstep/profile/profile.h"

#include <algorithm>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/workload.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/profiler_ranges.h"
#include "flashstep/profiling.h"
#include "flashstep/trace/trace.h"
#include "flashstep/trace/trace_events.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

std::string name_of(const Workload& w) {
  return str(model_name(w.model), ", context ", w.model.context_length, ", ", w.precision, ", ",
             w.model.attention, w.mode == "step" ? "" : ", " + w.mode);
}

void run_one(ModelRun& run) {
  const ScopedRange range("step");
  run.pass();
  synchronize(run.device());
}

// Lists of tensors reach the profiler without their shapes: what the update moves is known.
void add_update_traffic(const Workload& workload, ProfileSums& sums) {
  const double bytes = update_traffic_bytes(static_cast<double>(parameter_count(workload.model))) *
                       static_cast<double>(sums.steps);
  const CellFilter update{.passes = {Pass::kOptimizer}, .classes = {WorkClass::kElementwise}};
  const double known = add_up(sums, update).bytes;
  if (!has_update(workload) || known >= bytes) return;
  sums.cells.push_back(
      {Pass::kOptimizer, RangeTree::kRoot, WorkClass::kElementwise, "", {.bytes = bytes - known}});
}

// What the profiler saw of one mode of a case.
class CaseProfiler {
 public:
  CaseProfiler(const ProfileOptions& options, const Run& run, ProfileCase& c)
      : options_(options), run_(run), case_(c) {}

  void measure() {
    const Workload& workload = *case_.workload;
    if (options_.record) {  // before the model is there: its products and copies need memory too
      case_.limits = {measure::matmul_limit_flops(workload.device, workload.precision),
                      measure::memory_limit_bytes_per_s(workload.device)};
    }
    if (has_backward(workload) && options_.inference) {
      Workload forward = workload;
      forward.mode = "forward";
      case_.inference = measure_mode(forward, "_inference");
    }
    case_.step = measure_mode(workload, "");
  }

 private:
  std::optional<ProfileRun> measure_mode(const Workload& workload, const char* suffix) {
    const std::string what = str(case_.name, ", ", workload.mode, ": ");
    run_.tell(what + "warm-up");
    ModelRun model(workload);
    {
      const measure::ProfilerRanges listening;
      const ScopedRange range("warm-up");
      repeat(options_.warmup, [&] { model.pass(); });
      synchronize(model.device());
    }
    if (!options_.record) {
      show_to_others(model);
      return std::nullopt;
    }
    ProfileRun run;
    run_.tell(str(what, options_.steps, " steps by the clock"));
    repeat(options_.steps, [&] { model.timed_pass().add_to(run.timers); });
    run_.tell(str(what, options_.recorded, " steps recorded"));
    const measure::ProfilerRanges listening;
    run.sums = sums_of(record_steps(model, suffix));
    add_update_traffic(workload, run.sums);
    return run;
  }

  TraceEvents record_steps(ModelRun& model, const char* suffix) {
    const auto work = [&] {
      {  // the profiler is slow at first
        const ScopedRange range("warm-up");
        model.pass();
        synchronize(model.device());
      }
      repeat(options_.recorded, [&] { run_one(model); });
    };
    const std::string file =
        options_.directory.empty()
            ? ""
            : str(options_.directory, "/trace_", file_name(case_.name), suffix, ".json");
    return record(model.device(), work, file);
  }

  // For nsys and ncu, which know when to look by cudaProfilerStart and by the ranges.
  void show_to_others(ModelRun& model) {
    const measure::ProfilerRanges listening;
    measure::start_gpu_capture();
    repeat(options_.steps, [&] { run_one(model); });
    measure::stop_gpu_capture();
  }

  template <typename Work>
  void repeat(int64_t times, const Work& work) {
    for (int64_t i = 0; i < times; ++i) {
      check_interrupted("interrupted");
      work();
    }
  }

  const ProfileOptions& options_;
  const Run& run_;
  ProfileCase& case_;
};

// Of the model in a trace nothing is known.
void drop_empty_columns(measure::Table& table) {
  for (size_t i = table.columns.size(); i-- > 0;) {
    const auto is_empty = [i](const auto& row) {
      return std::holds_alternative<std::monostate>(row[i].value());
    };
    if (!std::ranges::all_of(table.rows, is_empty)) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    table.columns.erase(table.columns.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
}

Benchmark benchmark_of(const ProfileOptions& options, const std::vector<ProfileCase>& cases) {
  Benchmark benchmark = profile_benchmark(cases, options.top);
  if (!options.record) {
    benchmark.title = "Profile: ranges only, for another profiler";
    benchmark.schema = [steps = options.steps](const Records&) {
      return Schema{{measure::text_column("case"), fact("case")},
                    {measure::integer_column("steps"),
                     or_word([steps](const Record&, const Records&) { return steps; })}};
    };
  }
  const Workload& common = options.axes.common;
  benchmark.device = common.device;
  benchmark.how = str("Batch ", common.batch_size > 0 ? str(common.batch_size) : "of the size",
                      "; ", options.steps, " steps by the clock after ", options.warmup, ", then ",
                      options.recorded, " under the profiler");
  return benchmark;
}

}  // namespace

BenchReport profile_report(const ProfileOptions& options) {
  const std::vector<Workload> workloads = workloads_of(options.axes);
  std::vector<ProfileCase> cases;
  return run_benchmark(benchmark_of(options, cases), options.progress, [&](Run& run) {
    for (size_t i = 0; i < workloads.size(); ++i) {
      const Workload& workload = workloads[i];
      run.begin(i, workloads.size(), name_of(workload));
      ProfileCase& c = cases.emplace_back();
      c.name = name_of(workload);
      c.workload = workload;
      Outcome outcome = too_large_for_now(workload);
      if (outcome.measured()) outcome = attempt([&] { CaseProfiler(options, run, c).measure(); });
      if (workload.device == "cuda" && !outcome.failed()) measure::release_cached_gpu_memory();
      run.add(times_of(c, outcome));
    }
  });
}

BenchReport trace_report(const std::filesystem::path& file, int64_t top,
                         const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<ProfileCase> cases(1);
  cases[0].name = file.filename().string();
  cases[0].step = ProfileRun{.sums = sums_of(read_chrome_trace(file, progress))};
  Benchmark benchmark = profile_benchmark(cases, top);
  benchmark.command = "profile --trace " + cases[0].name;
  BenchReport report = report_of(benchmark, times_of(cases[0], {}));
  drop_empty_columns(report.table);
  for (NamedTable& named : report.tables) drop_empty_columns(named.table);
  return report;
}

}  // namespace flashstep::tools
