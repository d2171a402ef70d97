#include "flashstep/report/profile.h"

#include <algorithm>
#include <exception>
#include <memory>

#include <torch/types.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/profiling.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/chrome_trace.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/profiler_ranges.h"
#include "flashstep/report/recorder.h"
#include "flashstep/report/units.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

std::string name_of(const Workload& w) {
  return str(model_name(w.model), ", context ", w.model.context_length, ", ", w.precision, ", ",
             w.model.attention, w.mode == "step" ? "" : ", " + w.mode);
}

// On a CPU the kernel would end this process, so that what cannot fit is not tried. A GPU's
// allocator says so itself.
std::string too_large_for_now(const Workload& workload) {
  if (workload.device != "cpu") return "";
  const auto there = static_cast<double>(measure::available_bytes());
  const double about = needed_bytes(workload).about;
  if (there == 0 || about <= there) return "";
  return str("OOM: about ", fixed(about / kGiB, 1), " GiB are needed, ", fixed(there / kGiB, 1),
             " GiB are there");
}

void run_one(ModelRun& run) {
  const ScopedRange range("step");
  run.pass();
  synchronize(run.device());
}

// Of one step; 0 without steps.
double ranges_in(const TraceEvents& trace, const std::vector<StepTime>& steps) {
  if (steps.empty()) return 0;
  const auto in_a_step = [&](const TraceEvent& e) {
    return e.kind == EventKind::kRange &&
           std::any_of(steps.begin(), steps.end(), [&](const StepTime& step) {
             return step.begin_ns <= e.begin_ns && e.begin_ns < step.end_ns;
           });
  };
  const auto ranges = std::count_if(trace.events.begin(), trace.events.end(), in_a_step);
  return static_cast<double>(ranges) / static_cast<double>(steps.size());
}

// Lists of tensors reach the profiler without their shapes: what the update moves is known.
void add_update_traffic(const Workload& workload, ProfileSums& sums) {
  const double bytes = update_traffic_bytes(static_cast<double>(parameter_count(workload.model))) *
                       static_cast<double>(sums.steps);
  const CellFilter update{.passes = {Pass::kOptimizer}, .classes = {WorkClass::kElementwise}};
  const double known = add_up(sums, update).bytes;
  if (!has_update(workload) || known >= bytes) return;
  sums.work.push_back(
      {Pass::kOptimizer, RangeTree::kRoot, WorkClass::kElementwise, 0, bytes - known});
}

// All that is said of the cases.
void fill_tables(const std::vector<ProfileCase>& cases, int64_t top, const std::string& footnote,
                 BenchReport& report) {
  report.table = times_table(cases);
  const auto add = [&](const char* name, measure::Table table) {
    if (!table.rows.empty()) report.tables.push_back({name, std::move(table)});
  };
  add("kernels", kernels_table(cases, top));
  add("classes", classes_table(cases));
  add("shares", shares_table(cases));
  add("ranges", ranges_table(cases));
  add("attention", attention_table(cases));
  add("blocks", blocks_table(cases));
  for (std::string& note : profile_notes(cases)) report.table.notes.push_back(std::move(note));
  for (const ProfileCase& c : cases) {
    const std::string name = file_name(c.name);
    if (c.step) {
      report.pictures.push_back({"flame_" + name, flame_graph(c, *c.step, footnote)});
      report.pictures.push_back({"shares_" + name, shares_plot(c, footnote)});
    }
    if (c.inference) {
      report.pictures.push_back(
          {"flame_inference_" + name, flame_graph(c, *c.inference, footnote)});
    }
  }
}

// One mode of one case after another, what there is is kept.
class Profiler {
 public:
  explicit Profiler(const ProfileOptions& options)
      : options_(options), workloads_(workloads_of(options.axes)) {}

  BenchReport run() {
    measure_until_failure(report_, [&] {
      for (const Workload& workload : workloads_) {
        ProfileCase& c = cases_.emplace_back();
        c.name = name_of(workload);
        c.workload = workload;
        measure_case(c);
      }
    });
    const bool any = std::any_of(cases_.begin(), cases_.end(), [](const ProfileCase& c) {
      return c.step || c.failure.empty() || c.failure.rfind("OOM", 0) == 0;
    });
    if (!any && mistake_ != nullptr) std::rethrow_exception(mistake_);
    fill_report();
    return std::move(report_);
  }

 private:
  void tell(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  void measure_case(ProfileCase& c) {
    c.failure = too_large_for_now(*c.workload);
    if (!c.failure.empty()) return;
    try {
      if (options_.record) {  // before the model is there: its products and copies need memory too
        const std::string& device = c.workload->device;
        c.limits = {measure::matmul_limit_flops(device, c.workload->precision),
                    measure::memory_limit_bytes_per_s(device)};
      }
      if (has_backward(*c.workload) && options_.inference) {
        Workload forward = *c.workload;
        forward.mode = "forward";
        c.inference = measure_mode(c, forward, "_inference");
      }
      c.step = measure_mode(c, *c.workload, "");
    } catch (...) {
      const Outcome outcome = outcome_of(std::current_exception());
      const bool refused = outcome.status == Status::kRefused;
      if (refused && mistake_ == nullptr) mistake_ = std::current_exception();
      c.failure = refused ? "failed: " + outcome.why : outcome.sentence();
      // A GPU that failed answers nobody any more.
      if (outcome.failed()) throw MachineError("[profile] " + c.name + " " + outcome.sentence());
    }
    if (c.workload->device == "cuda") measure::release_cached_gpu_memory();
  }

  std::optional<ProfileRun> measure_mode(ProfileCase& c, const Workload& workload,
                                         const char* suffix) {
    tell(str(c.name, ", ", workload.mode, ": warm-up"));
    ModelRun model(workload);
    {
      const ProfilerRanges listening;
      const ScopedRange range("warm-up");
      repeat(options_.warmup, [&] { model.pass(); });
      synchronize(model.device());
    }
    if (!options_.record) {
      show_to_others(model);
      return std::nullopt;
    }
    ProfileRun run;
    tell(str(c.name, ", ", workload.mode, ": ", options_.steps, " steps by the clock"));
    repeat(options_.steps, [&] { run.timers.push_back(model.timed_pass()); });
    tell(str(c.name, ", ", workload.mode, ": ", options_.recorded, " steps recorded"));
    const ProfilerRanges listening;
    const TraceEvents trace = record_steps(model, trace_file(c, suffix));
    const Attribution attribution = attribute(trace);
    run.sums = sums_of(trace, attribution);
    add_update_traffic(workload, run.sums);
    c.ranges = ranges_in(trace, attribution.steps);
    return run;
  }

  TraceEvents record_steps(ModelRun& model, const std::string& file) {
    const auto work = [&] {
      {  // the profiler is slow at first
        const ScopedRange range("warm-up");
        model.pass();
        synchronize(model.device());
      }
      repeat(options_.recorded, [&] { run_one(model); });
    };
    return record(model.device(), work, file);
  }

  // For nsys and ncu, which know when to look by cudaProfilerStart and by the ranges.
  void show_to_others(ModelRun& model) {
    const ProfilerRanges listening;
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

  std::string trace_file(const ProfileCase& c, const char* suffix) const {
    if (options_.directory.empty()) return "";
    return str(options_.directory, "/trace_", file_name(c.name), suffix, ".json");
  }

  void fill_report() {
    const std::string machine = measure::one_line(measure::describe_machine());
    if (options_.record)
      fill_tables(cases_, options_.top, "flashstep profile; " + machine, report_);
    if (!options_.record) {
      report_.table.title = "Profile: ranges only, for another profiler";
      report_.table.columns = {measure::text_column("case"), measure::integer_column("steps")};
      for (const ProfileCase& c : cases_) {
        report_.table.add_row(
            {c.name, c.failure.empty() ? measure::Cell(options_.steps) : measure::Cell(c.failure)});
      }
    }
    auto& notes = report_.table.notes;
    std::string how = str("Batch ", workloads_.front().batch_size, "; ", options_.steps,
                          " steps by the clock after ", options_.warmup, ", then ",
                          options_.recorded, " under the profiler; ", machine);
    if (workloads_.front().device == "cuda") {
      if (const auto state = measure::gpu_state()) how += "; " + measure::describe(*state);
    }
    notes.push_back(how + ".");
    if (report_.signal != 0) notes.emplace_back("Interrupted: the rest was not measured.");
    if (!report_.failure.empty()) notes.push_back("Failed: " + report_.failure + ".");
  }

  const ProfileOptions& options_;
  std::vector<Workload> workloads_;
  std::vector<ProfileCase> cases_;
  BenchReport report_;
  std::exception_ptr mistake_;
};

}  // namespace

ProfileOptions profile_preset(const std::string& name) {
  ProfileOptions options;
  options.axes.attentions = {"auto", "naive"};
  if (name.empty()) return options;
  options.axes.sizes = handout_sizes(name);
  // Few: models of billions of parameters, of which a GPU repeats a step within a percent.
  options.warmup = 2;
  options.steps = 3;
  options.recorded = 1;
  if (name == "2024") {
    options.axes.contexts = {128};
    options.axes.common.batch_size = 16;
    options.warmup = 1;
    options.steps = 5;
  } else if (name == "2025") {
    options.axes.contexts = {128, 256, 512, 1024};
  } else {
    options.axes.sizes = {"small", "medium"};  // two of the caller's choice; and three contexts
    options.axes.contexts = {256, 512, 1024};
  }
  return options;
}

BenchReport profile_report(const ProfileOptions& options) { return Profiler(options).run(); }

BenchReport trace_report(const std::filesystem::path& file, int64_t top,
                         const std::function<void(uint64_t, uint64_t)>& progress) {
  const TraceEvents trace = read_chrome_trace(file, progress);
  ProfileCase c;
  c.name = file.filename().string();
  c.step = ProfileRun{.sums = sums_of(trace, attribute(trace)), .timers = {}};
  BenchReport report;
  fill_tables({c}, top, "flashstep profile --trace " + c.name, report);
  return report;
}

}  // namespace flashstep::report
