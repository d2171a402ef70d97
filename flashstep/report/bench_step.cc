#include "flashstep/report/bench_step.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/units.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

// Of the memory that is there: the rest is for what lives for a moment only.
constexpr double kUsableByStep = 0.9;

// After an error of CUDA's own nothing can be measured any more in its process.
bool gpu_answers() {
  try {
    measure::synchronize_gpu();
    return true;
  } catch (const MachineError&) {
    return false;
  }
}

// Measures case after case, and keeps what there is.
class Bench {
 public:
  explicit Bench(const BenchStepOptions& options)
      : options_(options), workloads_(workloads_of(options.axes)) {}

  BenchReport run() {
    const double begin = measure::steady_seconds();
    measure_until_failure(report_, [&] {
      for (size_t i = 0; i < workloads_.size(); ++i) {
        place_ = str(i + 1, " of ", workloads_.size(), ": ");
        measure_workload(workloads_[i]);
      }
    });
    const bool any = std::any_of(results_.begin(), results_.end(),
                                 [](const StepResult& result) { return result.measured(); });
    if (!any && mistake_ != nullptr) std::rethrow_exception(mistake_);
    fill_report(measure::steady_seconds() - begin);
    return std::move(report_);
  }

 private:
  void measure_workload(const Workload& workload) {
    for (const bool deterministic : options_.deterministic) {
      for (const int64_t warmup : options_.warmups) {
        keep(measure_one(workload, warmup, deterministic));
        // What does not run after one warm-up does not run after another.
        if (!results_.back().measured()) break;
      }
    }
    if (!results_.back().out_of_memory() || !options_.reduce) return;
    for (StepResult& result : measure_reduced(workload)) keep(std::move(result));
  }

  void keep(StepResult result) {
    const std::string trouble = gradient_trouble(result);
    if (!trouble.empty()) note_failure(trouble);
    results_.push_back(std::move(result));
  }

  // Of the machine: the rest is measured, and the command ends with it.
  void note_failure(const std::string& sentence) {
    if (report_.failure.empty()) report_.failure = sentence;
  }
  void note_failure(const Workload& workload, const std::string& trouble) {
    note_failure(str("[bench step] ", describe(workload), " ", trouble));
  }

  StepResult measure_one(const Workload& workload, int64_t warmup, bool deterministic) {
    StepTask task;
    task.workload = workload;
    task.warmup = warmup;
    task.steps = options_.steps;
    task.turns = options_.turns;
    task.graph = options_.graph;
    task.deterministic = deterministic;
    task.peers = options_.peers;
    task.peer_command = options_.peer_command;
    if (options_.progress) {
      options_.progress(
          str(place_, describe(workload), ", after ", warmup, warmup == 1 ? " step" : " steps"));
    }
    const double least = needed_bytes(workload).least, there = total_memory_bytes(workload.device);
    if (least > there) {
      StepResult result;
      result.task = task;
      result.trouble = str("OOM: what lives through a step takes ", fixed(least / kGiB, 1),
                           " GiB of ", fixed(there / kGiB, 1));
      return result;
    }
    const bool own =
        options_.own_process && (workload.device == "cpu" || options_.warmups.size() > 1);
    return own ? measure_in_own_process(task) : measure_here(task);
  }

  StepResult measure_here(const StepTask& task) {
    StepResult result;
    result.task = task;
    try {
      return measure_step(task, {}, peers_);
    } catch (const UserError& error) {
      note_mistake(result, error.what());
    } catch (const c10::OutOfMemoryError& error) {
      result.trouble = "OOM: " + first_line(error.what_without_backtrace());
    } catch (const std::bad_alloc&) {
      result.trouble = "OOM: the allocator has no more";
    } catch (const c10::Error& error) {
      result.trouble = process_trouble(first_line(error.what_without_backtrace()));
      if (result.out_of_memory()) return result;
      if (task.workload.device == "cuda" && !gpu_answers()) {
        results_.push_back(result);
        throw MachineError("[bench step] the GPU failed: " +
                           first_line(error.what_without_backtrace()));
      }
      note_failure(task.workload, result.trouble);
    }
    return result;
  }

  StepResult measure_in_own_process(const StepTask& task) {
    RankJob job;
    job.ranks = 1;
    job.arguments = {"bench", "step"};
    job.task = write_json(task);
    job.program = job.launcher = options_.program;
    const RanksOutcome outcome = run_ranks(job);
    StepResult result;
    result.task = task;
    if (!outcome.results.empty()) result = step_result_from_json(outcome.results.back());
    if (outcome.failure.empty()) return result;
    const std::string trouble = process_trouble(outcome.failure);
    if (outcome.exit_code == 2) {
      note_mistake(result, trouble.substr(trouble.find(": ") + 2));
      return result;
    }
    if (!trouble.starts_with("OOM")) note_failure(task.workload, trouble);
    if (result.steps.empty()) {
      result.trouble = trouble;
    } else {  // ours is there; what came after it was a peer, or a check
      for (PeerSteps& peer : result.peers) {
        if (peer.steps.empty() && peer.trouble.empty()) peer.trouble = trouble;
      }
    }
    return result;
  }

  // What the caller asked for and this implementation or size cannot do is a cell, unless nothing
  // can.
  void note_mistake(StepResult& result, const std::string& sentence) {
    if (mistake_ == nullptr) mistake_ = std::make_exception_ptr(UserError(sentence));
    result.trouble = "failed: " + sentence;
  }

  // The same with fewer layers, by the formulas and then by what the measured peak says of them.
  std::vector<StepResult> measure_reduced(const Workload& workload) {
    const double room = kUsableByStep * free_memory_bytes(workload.device);
    std::vector<StepResult> best;
    int64_t layers = fitting_layers(workload, room), too_many = workload.model.num_layers;
    constexpr int kTries = 4;
    for (int i = 0; i < kTries && layers > 0; ++i) {
      std::vector<StepResult> results = measure_layers(workload, layers);
      if (!results.back().measured()) {
        too_many = layers;
        if (!best.empty()) break;
        layers = layers * 4 / 5;
        continue;
      }
      best = std::move(results);
      const double factor = best.back().peak_bytes / needed_bytes(best.back().task.workload).about;
      const int64_t next = std::min(fitting_layers(workload, room, factor), too_many - 1);
      if (next <= layers + layers / 10) break;  // not worth another measurement
      layers = next;
    }
    return best;
  }

  std::vector<StepResult> measure_layers(const Workload& whole, int64_t layers) {
    Workload workload = whole;
    workload.model.num_layers = layers;
    std::vector<StepResult> results;
    for (const int64_t warmup : options_.warmups) {
      results.push_back(measure_one(workload, warmup, options_.deterministic.front()));
      results.back().whole_layers = whole.model.num_layers;
      if (!results.back().measured()) break;
    }
    return results;
  }

  void fill_report(double seconds) {
    report_.table = step_table(results_);
    report_.runs = step_runs(results_);
    auto& notes = report_.table.notes;
    for (std::string& note : step_notes(results_)) notes.push_back(std::move(note));
    const std::string machine = measure::one_line(measure::describe_machine());
    std::string how = str("Timed steps: ", options_.steps * options_.turns, " in ", options_.turns,
                          options_.turns == 1 ? " turn; " : " turns; ", machine);
    if (workloads_.front().device == "cuda") {
      if (const auto state = measure::gpu_state()) how += "; " + measure::describe(*state);
    }
    notes.push_back(str(how, "; ", human_seconds(seconds), "."));
    if (report_.signal != 0) notes.emplace_back("Interrupted: the rest was not measured.");
    if (!report_.failure.empty()) notes.push_back("Failed: " + report_.failure + ".");
    for (std::string& sentence : step_verdict(results_)) notes.push_back(std::move(sentence));
    report_.pictures = step_pictures(results_, "flashstep bench step; " + machine);
  }

  const BenchStepOptions& options_;
  std::vector<Workload> workloads_;
  std::string place_;  // of the workload among all
  std::vector<StepResult> results_;
  PeerProcesses peers_;
  BenchReport report_;
  std::exception_ptr mistake_;
};

}  // namespace

NeededBytes needed_bytes(const Workload& w) {
  const StateBytes state = state_bytes(static_cast<double>(parameter_count(w.model)));
  const PassShape shape = pass_shape(w);
  double saved = 0;
  for (const SavedTensor& tensor : head_saved_tensors(w.model, shape)) saved += tensor.bytes;
  // Without a graph one block is there at a time.
  const BlockStack stack{.blocks = has_backward(w) ? w.model.num_layers : 1,
                         .boundary_bytes = residual_stream_bytes(w.model, shape),
                         .saved_bytes = block_saved_bytes(w.model, shape)};
  const auto kept = w.recompute == "block"
                        ? recompute_groups(stack, std::min(w.recompute_group, stack.blocks))
                        : keep_everything(stack);
  saved += kept.peak_bytes;
  const double moments = w.moments == "bf16" ? state.optimizer / 2 : state.optimizer;
  const double least =
      state.parameters + (has_backward(w) ? state.gradients : 0) + (has_update(w) ? moments : 0);
  return {least, least + saved};
}

int64_t fitting_layers(const Workload& workload, double available_bytes, double factor) {
  Workload fewer = workload;
  while (--fewer.model.num_layers > 0) {
    if (factor * needed_bytes(fewer).about <= available_bytes) break;
  }
  return fewer.model.num_layers;
}

BenchStepOptions step_preset(const std::string& name) {
  BenchStepOptions options;
  if (name.empty()) return options;
  WorkloadAxes& axes = options.axes;
  if (name == "peers") {
    axes.sizes = {"tiny", "mini", "base"};
    axes.contexts = {0};
    axes.precisions = {"fp32", "bf16"};
    options.warmups = {2};
    options.steps = 3;
    options.turns = 5;
    options.peers = {"eager"};
    return options;
  }
  axes.sizes = handout_sizes(name);
  axes.modes = {"forward", "step"};
  if (name == "2024") {
    axes.common.batch_size = 16;
    options.warmups = {1};
    options.steps = 5;
  } else {
    axes.contexts =
        name == "2025" ? std::vector<int64_t>{128, 256, 512, 1024} : std::vector<int64_t>{512};
    axes.precisions = {"fp32", "bf16"};
  }
  return options;
}

BenchReport bench_step(const BenchStepOptions& options) {
  require(!options.warmups.empty() && options.steps > 0 && options.turns > 0,
          "[bench step] expected numbers of warm-up steps, timed steps and turns, got none of one");
  require(!options.deterministic.empty(),
          "[bench step] expected deterministic to be true, false or both, got neither");
  require(!options.graph || options.axes.common.device == "cuda",
          "[bench step] expected a GPU for steps in a CUDA graph, got the CPU");
  require(options.peers.empty() || !options.peer_command.empty(),
          "[bench step] expected the command of the peers, got none");
  return Bench(options).run();
}

}  // namespace flashstep::report
