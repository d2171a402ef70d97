#include "flashstep/bench/step.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/model/cost.h"

namespace flashstep::tools {
namespace {

// Of the memory that is there: the rest is for what lives for a moment only.
constexpr double kUsableByStep = 0.9;

bool is_measured(const std::vector<Record>& records) { return records.front().outcome.measured(); }

// Measures case after case.
class StepBench {
 public:
  StepBench(const BenchStepOptions& options, Run& run) : options_(options), run_(run) {}

  void measure_workload(const Workload& workload) {
    Outcome last;
    for (const bool deterministic : options_.deterministic) {
      for (const int64_t warmup : options_.warmups) {
        std::vector<Record> records = measure_one(workload, warmup, deterministic, 0);
        last = records.front().outcome;
        run_.add(std::move(records));
        // What does not run after one warm-up does not run after another.
        if (!last.measured()) break;
      }
    }
    if (last.status != Status::kOutOfMemory || !options_.reduce) return;
    for (std::vector<Record>& records : measure_reduced(workload)) run_.add(std::move(records));
  }

 private:
  std::vector<Record> measure_one(const Workload& workload, int64_t warmup, bool deterministic,
                                  int64_t whole_layers) {
    StepTask task = options_.task;
    task.workload = workload;
    task.warmup = warmup;
    task.deterministic = deterministic;
    run_.tell(str(describe(workload), ", after ", warmup, warmup == 1 ? " step" : " steps"));
    std::vector<Record> records = blanks_of(task);
    Outcome& outcome = records.front().outcome;
    outcome = too_large(workload);
    const bool own =
        options_.own_process && (workload.device == "cpu" || options_.warmups.size() > 1);
    try {
      if (outcome.measured()) own ? measure_in_own_process(task, records) : measure(task, records);
    } catch (const Interrupted&) {  // minutes into a peer's compilation, say: ours is there
      describe_records(task, whole_layers, records);
      if (records.front().facts.contains("peak_bytes")) run_.add(std::move(records));
      throw;
    }
    describe_records(task, whole_layers, records);
    return records;
  }

  void measure(const StepTask& task, std::vector<Record>& records) {
    const Outcome found = attempt([&] { measure_step(task, records, nullptr, peers_); });
    if (found.measured()) return;
    records.front().outcome = found;
    records.front().drop_samples();
    if (task.workload.device == "cuda") measure::release_cached_gpu_memory();
  }

  void measure_in_own_process(const StepTask& task, std::vector<Record>& records) {
    const Outcome outcome = run_own_process(
        {"bench", "step"}, write_task(task), options_.program,
        [&](const std::string& all) { nlohmann::ordered_json::parse(all).get_to(records); });
    if (outcome.measured()) return;
    Record& ours = records.front();
    if (!ours.has("total")) {
      ours.outcome = outcome;
      return;
    }
    // Ours is there; what came after it was a peer, or a check.
    if (outcome.failed()) ours.fault = outcome.sentence();
    for (Record& record : records) {
      if (!record.has("total") && record.outcome.measured()) record.outcome = outcome;
    }
  }

  // The same with fewer layers, by the formulas and then by what the measured peak says of them.
  std::vector<std::vector<Record>> measure_reduced(const Workload& workload) {
    const double room = kUsableByStep * free_memory_bytes(workload.device);
    std::vector<std::vector<Record>> best;
    int64_t layers = fitting_layers(workload, room), too_many = workload.model.num_layers;
    constexpr int kTries = 4;
    for (int i = 0; i < kTries && layers > 0; ++i) {
      Workload fewer = workload;
      fewer.model.num_layers = layers;
      std::vector<std::vector<Record>> found = measure_layers(fewer, workload.model.num_layers);
      if (!is_measured(found.back())) {
        too_many = layers;
        if (!best.empty()) break;
        layers = layers * 4 / 5;
        continue;
      }
      best = std::move(found);
      const double factor = best.back().front().number("peak_bytes") / needed_bytes(fewer).about;
      const int64_t next = std::min(fitting_layers(workload, room, factor), too_many - 1);
      if (next <= layers + layers / 10) break;  // not worth another measurement
      layers = next;
    }
    return best;
  }

  std::vector<std::vector<Record>> measure_layers(const Workload& workload, int64_t whole_layers) {
    std::vector<std::vector<Record>> found;
    for (const int64_t warmup : options_.warmups) {
      found.push_back(measure_one(workload, warmup, options_.deterministic.front(), whole_layers));
      if (!is_measured(found.back())) break;
    }
    return found;
  }

  const BenchStepOptions& options_;
  Run& run_;
  PythonPeers peers_;
};

// "xl", or what stands in its place: "xl, 21 of 48 layers *".
std::string shown_model(const ModelConfig& model, int64_t whole_layers) {
  if (whole_layers == 0) return model_name(model);
  ModelConfig whole = model;
  whole.num_layers = whole_layers;
  return str(model_name(whole), ", ", model.num_layers, " of ", whole_layers, " layers *");
}

}  // namespace

void describe_records(const StepTask& task, int64_t whole_layers, std::vector<Record>& records) {
  const Workload& w = task.workload;
  const std::string mode = mode_text(w) + (task.deterministic ? ", deterministic" : "");
  for (Record& r : records) {
    r.key = {{"model", shown_model(w.model, whole_layers)},
             {"parameters", static_cast<double>(parameter_count(w.model)) / 1e6},
             {"batch", w.batch_size},
             {"context", w.model.context_length},
             {"precision", w.precision},
             {"attention", w.model.attention},
             {"mode", mode},
             {"warm-up", task.warmup}};
    r.what = (whole_layers > 0 ? r.text("model") + ": " : "") + describe(w);
    r.facts["device"] = w.device;
    r.facts["tokens"] = w.batch_size * w.model.context_length;
    r.facts["flops"] = pass_flops(w);
    r.facts["stem"] = str("b", w.batch_size, "_n", w.model.context_length, "_", w.precision, "_",
                          w.model.attention, task.deterministic ? "_deterministic" : "");
    r.facts["warm-up stem"] =
        str(model_name(w.model), "_n", w.model.context_length, "_", w.precision, "_",
            w.model.attention, "_", w.mode, task.deterministic ? "_deterministic" : "");
  }
  Record& ours = records.front();
  const double most = gradient_tolerance(w.precision), error = ours.number("gradient error");
  if (ours.facts.contains("gradient error") && !(error <= most))
    ours.fault = str("expected a gradient within ", most, " of the reference, got ", error);
}

BenchReport bench_step(const BenchStepOptions& options) {
  const StepTask& task = options.task;
  require(!task.graph || options.axes.common.device == "cuda",
          "[bench step] expected a GPU for steps in a CUDA graph, got the CPU");
  require(task.peers.empty() || !task.peer_command.empty(),
          "[bench step] expected the command of the peers, got none");
  const std::vector<Workload> workloads = workloads_of(options.axes);
  return run_benchmark(step_benchmark(options), options.progress, [&](Run& run) {
    StepBench bench(options, run);
    for (size_t i = 0; i < workloads.size(); ++i) {
      run.begin(i, workloads.size(), describe(workloads[i]));
      bench.measure_workload(workloads[i]);
    }
  });
}

}  // namespace flashstep::tools
