// The forward pass, forward and backward, or the whole training step of models on one device:
// every single step's time, and the same of PyTorch's where that is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/task.h"
#include "flashstep/bench/workload.h"

namespace flashstep::tools {

// What one process measures at a time.
struct StepTask {
  Workload workload;
  int64_t warmup = 5, steps = 10;  // before the timed ones; timed, in a turn
  // Of ours and of each peer. Every turn but the first begins with one step that is not timed: the
  // others' turns have emptied the caches.
  int64_t turns = 1;
  // Whole steps on a GPU are also replayed from a CUDA graph, in turns beside those that are
  // launched (train.graph).
  bool graph = false, deterministic = false;   // as train.deterministic
  std::vector<std::string> peers = {};         // PyTorch: eager, compiled, or a mode
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/step_torch.py
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepTask, workload, warmup, steps, turns, graph, deterministic,
                                   peers, peer_command)

struct BenchStepOptions {
  WorkloadAxes axes;
  StepTask task;                       // with each workload of the axes, and each of these:
  std::vector<int64_t> warmups = {5};  // several: each in a process of its own, which begins cold
  std::vector<bool> deterministic = {false};
  // Beside a size that needs too much memory: the same with as many layers as fit.
  bool reduce = true;
  // On a CPU every case is measured by a process of its own: its peak of memory is then its own,
  // and where memory is too small the kernel ends that process. (On a GPU in this one: LibTorch
  // says so.)
  bool own_process = true;
  std::string program = "/proc/self/exe";  // a flashstep, which is run for that
  TellProgress progress = {};
};

// One line a case and warm-up: what the columns mean is in docs/measuring.md. Where memory is too
// small, or a peer does not run, the cells say so and the rest is measured. Without peers nothing
// is compared; with them the gradient of one sequence is held against the reference operations in
// float64 (models of at most 50 M parameters). A wrong one becomes the report's failure. UserError
// for what cannot be measured at all, before anything is.
BenchReport bench_step(const BenchStepOptions& options);

// ---- Inside

inline constexpr const char* kOurs = "flashstep";
inline constexpr const char* kReplayed = "flashstep graph";

// PyTorch's processes by the peers' names. One serves case after case: to import PyTorch takes
// longer than most cases do.
using PythonPeers = std::map<std::string, PythonPeer>;

// Ours, ours in a CUDA graph where that is asked for, and the peers, not measured yet.
std::vector<Record> blanks_of(const StepTask& task);
// `parts` and "total" in seconds, and "turn", a value for each step; those of steps that are not
// timed behind "warm-up ".
void add_step(Record& record, int64_t turn, bool warmup, const StepTimes& times);

// Measures in this process: facts "peak_bytes" and, where it is compared, "gradient error". `told`
// gets the records so far, whenever there is more in them. Peers that are not among `started` are
// started, and stay there with their memory given back.
using TellRecords = std::function<void(const std::vector<Record>&)>;
void measure_step(const StepTask& task, std::vector<Record>& records, const TellRecords& told,
                  PythonPeers& started);
// In a process that bench_step() has started.
void bench_step_process(const std::string& task);

// The norm of the difference of two gradients of one sequence, over the norm: ours, and that of the
// reference operations in float64. And what it may be.
double gradient_error(const Workload& workload);
double gradient_tolerance(const std::string& precision);

// What follows for ours from the task: key and facts; and its fault. `whole_layers`: of the size
// that did not fit, in whose place this stands; or 0.
void describe_records(const StepTask& task, int64_t whole_layers, std::vector<Record>& records);

Benchmark step_benchmark(const BenchStepOptions& options);

}  // namespace flashstep::tools
