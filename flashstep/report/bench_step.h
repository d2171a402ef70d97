// The forward pass, forward and backward, or the whole training step of models on one device:
// every single step's time, and the same of PyTorch's where that is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/peer_process.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {

struct BenchStepOptions {
  WorkloadAxes axes;
  // Steps before the timed ones. Several: each count in a process of its own, which begins cold.
  std::vector<int64_t> warmups = {5};
  int64_t steps = 10;  // timed, in a turn
  // Of ours and of each peer. Every turn but the first begins with one step that is not timed: the
  // others' turns have emptied the caches.
  int64_t turns = 1;
  // Whole steps on a GPU are also replayed from a CUDA graph, in turns beside those that are
  // launched (train.graph).
  bool graph = false;
  std::vector<bool> deterministic = {false};   // train.deterministic; both: each as a case
  std::vector<std::string> peers = {};         // PyTorch: eager, compiled, or a mode
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/step_torch.py
  // Beside a size that needs too much memory: the same with as many layers as fit.
  bool reduce = true;
  // On a CPU every case is measured by a process of its own: its peak of memory is then its own,
  // and where memory is too small the kernel ends that process. (On a GPU in this one: LibTorch
  // says so.)
  bool own_process = true;
  std::string program = "/proc/self/exe";                      // a flashstep, which is run for that
  std::function<void(const std::string& line)> progress = {};  // may be empty
};

// "": small; "2024", "2025", "2026": the handout's sizes; "peers": tiny, mini and base beside
// PyTorch. UserError for others.
BenchStepOptions step_preset(const std::string& name);

// One line a case and warm-up: what the columns mean is in docs/measuring.md. Where memory is too
// small, or a peer does not run, the cells say so and the rest is measured. Without peers nothing
// is compared; with them the gradient of one sequence is held against the reference operations in
// float64 (models of at most 50 M parameters). A wrong one becomes the report's failure, and so
// does a process or a GPU that fails; the rest is measured. UserError for what cannot be measured
// at all, before anything is.
BenchReport bench_step(const BenchStepOptions& options);

// ---- Inside

// What one process measures at a time.
struct StepTask {
  Workload workload;
  int64_t warmup = 5, steps = 10, turns = 1;
  bool graph = false, deterministic = false;
  std::vector<std::string> peers, peer_command;
  void visit(FieldVisitor& visitor);
};

struct TimedStep {
  int64_t turn = 0;
  bool warmup = false;
  StepTimes times;
};

struct PeerSteps {
  std::string name;                                              // "eager"
  std::vector<TimedStep> steps = {};                             // their warm-up is not among them
  double peak_bytes = std::numeric_limits<double>::quiet_NaN();  // on a GPU
  std::string trouble = {};  // why there is nothing more; empty: nothing is missing
};

struct StepResult {
  StepTask task;
  std::vector<TimedStep> steps;
  double peak_bytes = std::numeric_limits<double>::quiet_NaN();
  PeerSteps replayed;                    // ours in a CUDA graph; no steps where not asked for
  std::optional<double> gradient_error;  // where it was compared
  std::vector<PeerSteps> peers;
  std::string trouble;       // "OOM: ...", "failed: ..."; empty when it was measured
  int64_t whole_layers = 0;  // of the size that did not fit, in whose place this stands; or 0

  bool measured() const { return trouble.empty(); }
  bool out_of_memory() const { return trouble.rfind("OOM", 0) == 0; }
  // Milliseconds of the timed steps.
  std::vector<double> milliseconds(double StepTimes::*part) const;
};

// PyTorch's processes by the peers' names. One serves case after case: to import PyTorch takes
// longer than most cases do.
using PeerProcesses = std::map<std::string, std::unique_ptr<PeerProcess>>;

// Measures in this process. `told` gets the result so far, whenever there is more of it. Peers that
// are not among `started` are started, and stay there with their memory given back.
StepResult measure_step(const StepTask& task, const std::function<void(const StepResult&)>& told,
                        PeerProcesses& started);
// In a process that bench_step() has started.
void bench_step_process(const std::string& task);

std::string to_json(const StepResult& result);
StepResult step_result_from_json(const std::string& json);

// The norm of the difference of two gradients of one sequence, over the norm: ours, and that of the
// reference operations in float64. And what it may be.
double gradient_error(const Workload& workload);
double gradient_tolerance(const std::string& precision);
// What is wrong with a result's gradient; empty where nothing is, or nothing was compared.
std::string gradient_trouble(const StepResult& result);

// Bytes that the workload needs at once, by the formulas of model/cost.h and train/cost.h: at
// least, and about (what lives for a moment only is in neither).
struct NeededBytes {
  double least = 0, about = 0;
};
NeededBytes needed_bytes(const Workload& workload);
// The most layers, fewer than the workload's, for which `factor` times about that is available; 0:
// not one.
int64_t fitting_layers(const Workload& workload, double available_bytes, double factor = 1);

// The case's mode, "step"; "step, deterministic".
std::string shown_mode(const StepTask& task);
// "xl", or what stands in its place: "xl, 21 of 48 layers *".
std::string shown_model(const StepResult& result);
measure::Table step_table(const std::vector<StepResult>& results);
measure::Table step_runs(const std::vector<StepResult>& results);
std::vector<std::string> step_notes(const std::vector<StepResult>& results);
std::vector<std::string> step_verdict(const std::vector<StepResult>& results);
std::vector<NamedPicture> step_pictures(const std::vector<StepResult>& results,
                                        const std::string& footnote);

}  // namespace flashstep::report
