// One case of `flashstep bench step`: ours and the peers, in turns.
#include <memory>
#include <optional>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "flashstep/base/heap.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/bench_step.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/peer_process.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;
using at::Tensor;

// Whose gradient is checked: in float64 a step of 25 M parameters takes two cores a second.
constexpr int64_t kCheckedParameters = 50'000'000;

// The gradient of one sequence as one long vector, float64 on the CPU. `reference`: by the plain
// operations in float64 (they have no other path there).
Tensor gradient(const Workload& workload, bool reference) {
  ModelConfig config = workload.model;
  if (reference) config.attention = "naive";
  const at::Device device = reference ? at::Device(at::kCPU) : current_device(workload.device);
  const ProductsSwitch products(workload.precision);
  Transformer model(config, static_cast<uint64_t>(workload.seed),
                    torch::TensorOptions(reference ? at::kDouble : at::kFloat).device(device));
  model->set_short_stream(!reference && workload.stream == "bf16");
  model->set_recompute(recompute_by_name(workload.recompute), workload.recompute_group);
  const Tensor tokens =
      (at::arange(config.context_length + 1, at::kLong).square() % config.vocab_size).to(device);
  const TokenRows rows = {tokens.narrow(0, 0, config.context_length).unsqueeze(0),
                          tokens.narrow(0, 1, config.context_length).unsqueeze(0)};
  loss_of(*model, rows, reference ? "fp32" : workload.precision).backward();
  std::vector<Tensor> parts;
  for (const Tensor& parameter : model->parameters()) {
    parts.push_back(parameter.grad().flatten().cpu().to(at::kDouble));
  }
  return at::cat(parts);
}

// torch.compile's mode for a peer of this name; none for eager.
std::string compile_mode(const std::string& peer) {
  return peer == "eager" ? "" : peer == "compiled" ? "default" : peer;
}

// PyTorch in a process of its own, one for each way to run it. Between cases it holds no model.
class Peer {
 public:
  Peer(PeerSteps& steps, const StepTask& task, PeerProcesses& started)
      : steps_(steps), task_(task), process_(started[steps.name]) {
    if (process_ != nullptr) return;
    try {
      process_ = std::make_unique<PeerProcess>(task.peer_command);
    } catch (const MachineError& error) {
      steps_.trouble = error.what();
      return;
    }
    if (!process_->read_line()) {
      give_up(str("\"", join(task.peer_command, " "), "\" did not start"));
    }
  }

  ~Peer() {
    if (process_ != nullptr && !process_->ask(R"({"release": true})")) process_.reset();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void take_turn(int64_t turn, int64_t warmup) {
    if (process_ == nullptr) return;
    const auto answer = process_->ask(request(warmup).dump());
    const Json result = answer ? Json::parse(*answer, nullptr, /*allow_exceptions=*/false) : Json();
    if (result.is_object() && result.contains("error")) {
      give_up(result["error"].get<std::string>());
    } else if (!result.is_object() || !result.contains("seconds")) {
      give_up("did not run");
    } else {
      add(result, turn);
    }
  }

 private:
  void give_up(const std::string& trouble) {
    process_.reset();
    steps_.trouble = trouble;
  }

  Json request(int64_t warmup) const {
    const Workload& w = task_.workload;
    return {{"vocab", w.model.vocab_size},
            {"context", w.model.context_length},
            {"d_model", w.model.d_model},
            {"d_ff", w.model.d_ff},
            {"layers", w.model.num_layers},
            {"heads", w.model.num_heads},
            {"theta", w.model.rope_theta},
            {"epsilon", w.model.norm_epsilon},
            {"batch", w.batch_size},
            {"precision", w.precision == "fp32-split" ? "fp32" : w.precision},
            {"mode", w.mode},
            {"device", w.device},
            {"max_norm", w.max_norm},
            {"compile", compile_mode(steps_.name)},
            {"threads", at::get_num_threads()},
            {"warmup", warmup},
            {"steps", task_.steps}};
  }

  void add(const Json& result, int64_t turn) {
    const Json& seconds = result["seconds"];
    const auto part = [&](const char* name, size_t i) {
      return result.contains(name) ? result[name].at(i).get<double>() : 0.0;
    };
    for (size_t i = 0; i < seconds.size(); ++i) {
      const StepTimes times = {part("forward", i), part("backward", i), part("optimizer", i),
                               seconds[i].get<double>()};
      steps_.steps.push_back({turn, /*warmup=*/false, times});
    }
    if (result.contains("peak_bytes")) steps_.peak_bytes = result["peak_bytes"].get<double>();
  }

  PeerSteps& steps_;
  const StepTask& task_;
  std::unique_ptr<PeerProcess>& process_;  // among those that are started; none: it gave up
};

// While alive, LibTorch computes as train.deterministic says.
class Determinism {
 public:
  explicit Determinism(bool wanted)
      : was_(at::globalContext().deterministicAlgorithms()),
        cudnn_was_(at::globalContext().deterministicCuDNN()) {
    set(wanted, wanted);
  }
  ~Determinism() { set(was_, cudnn_was_); }
  Determinism(const Determinism&) = delete;
  Determinism& operator=(const Determinism&) = delete;

 private:
  static void set(bool algorithms, bool cudnn) {
    at::globalContext().setDeterministicAlgorithms(algorithms, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);  // as flashstep train
    at::globalContext().setDeterministicCuDNN(cudnn);
  }
  bool was_, cudnn_was_;
};

void take_our_turn(ModelRun& run, int64_t turn, int64_t warmup, StepResult& result) {
  for (int64_t i = 0; i < warmup + result.task.steps; ++i) {
    check_interrupted("interrupted");
    result.steps.push_back({turn, i < warmup, run.timed_pass()});
  }
}

// Recorded anew in every turn: between turns the graph's memory is others'.
void take_replayed_turn(ModelRun& run, int64_t turn, StepResult& result) {
  PeerSteps& replayed = result.replayed;
  try {
    run.start_replaying();
  } catch (const UserError& error) {
    replayed.trouble = error.what();
    return;
  }
  constexpr int64_t kWarmup = 1;  // the first replay brings the graph to the device
  for (int64_t i = 0; i < kWarmup + result.task.steps; ++i) {
    check_interrupted("interrupted");
    replayed.steps.push_back({turn, i < kWarmup, run.timed_replay()});
  }
  run.stop_replaying();
}

void tell(const std::function<void(const StepResult&)>& told, const StepResult& result) {
  if (told) told(result);
}

// Ours and the peers, one after the other.
void take_turns(StepResult& result, const std::function<void(const StepResult&)>& told,
                PeerProcesses& started) {
  const StepTask& task = result.task;
  const at::Device device = current_device(task.workload.device);
  at::empty({1}, device);  // LibTorch's allocator counts a GPU's memory from its first use on
  const double before = memory_bytes(device);
  const Determinism determinism(task.deterministic);
  auto run = std::make_unique<ModelRun>(task.workload);
  reset_peak_memory(device);
  std::vector<std::unique_ptr<Peer>> peers;
  for (int64_t turn = 0; turn < task.turns; ++turn) {
    const int64_t warmup = turn == 0 ? task.warmup : 1;
    take_our_turn(*run, turn, warmup, result);
    if (turn == 0) result.peak_bytes = peak_memory_bytes(device) - before;
    if (task.graph && has_update(task.workload) && result.replayed.trouble.empty()) {
      reset_peak_memory(device);
      take_replayed_turn(*run, turn, result);
      result.replayed.peak_bytes = peak_memory_bytes(device) - before;
      measure::release_cached_gpu_memory();
    }
    tell(told, result);
    if (turn + 1 == task.turns) {  // the peer may have our memory
      run.reset();
      if (device.is_cuda()) measure::release_cached_gpu_memory();
    }
    for (size_t i = 0; i < result.peers.size(); ++i) {
      if (turn == 0) peers.push_back(std::make_unique<Peer>(result.peers[i], task, started));
      // What is compiled is compiled in the first step.
      peers[i]->take_turn(turn, turn == 0 ? warmup + 1 : warmup);
      if (turn + 1 == task.turns) peers[i].reset();
      tell(told, result);
    }
  }
}

Json to_json(const std::vector<TimedStep>& steps) {
  Json json = Json::array();
  for (const TimedStep& step : steps) {
    const StepTimes& t = step.times;
    json.push_back({step.turn, step.warmup, t.forward, t.backward, t.optimizer, t.total});
  }
  return json;
}

std::vector<TimedStep> steps_from(const Json& json) {
  std::vector<TimedStep> steps;
  for (const Json& step : json) {
    steps.push_back({step.at(0), step.at(1), {step.at(2), step.at(3), step.at(4), step.at(5)}});
  }
  return steps;
}

// JSON has no NaN: null.
double number_of(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

Json to_json(const PeerSteps& peer) {
  return {{"name", peer.name},
          {"steps", to_json(peer.steps)},
          {"peak_bytes", peer.peak_bytes},
          {"trouble", peer.trouble}};
}

PeerSteps peer_steps_from(const Json& json) {
  return {json.at("name"), steps_from(json.at("steps")), number_of(json.at("peak_bytes")),
          json.at("trouble")};
}

}  // namespace

void StepTask::visit(FieldVisitor& v) {
  constexpr Range<int64_t> kCount = {0, 1'000'000};
  v.section("workload", workload, "what is measured");
  v.field("warmup", warmup, kCount, "steps that are not timed");
  v.field("steps", steps, {1, kCount.high}, "timed steps in a turn");
  v.field("turns", turns, {1, kCount.high}, "of ours and of each peer");
  v.field("graph", graph, "replayed from a CUDA graph, too");
  v.field("deterministic", deterministic, "as train.deterministic");
  v.field("peers", peers, "eager, compiled, reduce-overhead, max-autotune");
  v.field("peer_command", peer_command, "that runs the peer");
}

std::vector<double> StepResult::milliseconds(double StepTimes::*part) const {
  std::vector<double> result;
  for (const TimedStep& step : steps) {
    if (!step.warmup) result.push_back(step.times.*part * 1e3);
  }
  return result;
}

double gradient_tolerance(const std::string& precision) {
  // The rounding errors of some ten layers, with 24, 11 and 8 bits.
  return precision == "fp32"         ? 1e-4
         : precision == "fp32-split" ? 1e-3
         : precision == "tf32"       ? 1e-2
                                     : 0.1;
}

double gradient_error(const Workload& workload) {
  const Tensor expected = gradient(workload, /*reference=*/true);
  const Tensor difference = gradient(workload, /*reference=*/false) - expected;
  return (difference.norm() / expected.norm()).item<double>();
}

std::string gradient_trouble(const StepResult& result) {
  const Workload& workload = result.task.workload;
  const double tolerance = gradient_tolerance(workload.precision);
  if (!result.gradient_error || *result.gradient_error <= tolerance) return "";
  return str("[bench step] ", describe(workload), ": expected a gradient within ", tolerance,
             " of the reference, got ", *result.gradient_error);
}

StepResult measure_step(const StepTask& task, const std::function<void(const StepResult&)>& told,
                        PeerProcesses& started) {
  StepResult result;
  result.task = task;
  result.task.workload = resolved_workload(task.workload);
  for (const std::string& name : task.peers) {
    PeerSteps peer;
    peer.name = name;
    result.peers.push_back(peer);
  }
  take_turns(result, told, started);
  const Workload& workload = result.task.workload;
  if (!task.peers.empty() && has_backward(workload) &&
      parameter_count(workload.model) <= kCheckedParameters) {
    result.gradient_error = gradient_error(workload);
    tell(told, result);
  }
  return result;
}

void bench_step_process(const std::string& text) {
  measure::offer_to_oom_killer();
  keep_freed_memory();  // as flashstep train does
  StepTask task;
  read_json(task, text, "the task of a process");
  PeerProcesses peers;
  measure_step(
      task, [](const StepResult& result) { hand_over(to_json(result)); }, peers);
}

std::string to_json(const StepResult& result) {
  Json json = {{"task", Json::parse(write_json(result.task))},
               {"steps", to_json(result.steps)},
               {"peak_bytes", result.peak_bytes},
               {"peers", Json::array()}};
  if (result.gradient_error) json["gradient_error"] = *result.gradient_error;
  json["replayed"] = to_json(result.replayed);
  for (const PeerSteps& peer : result.peers) json["peers"].push_back(to_json(peer));
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

StepResult step_result_from_json(const std::string& text) {
  const Json json = Json::parse(text);
  StepResult result;
  read_json(result.task, json.at("task").dump(), "a result");
  result.steps = steps_from(json.at("steps"));
  result.peak_bytes = number_of(json.at("peak_bytes"));
  if (json.contains("gradient_error")) result.gradient_error = number_of(json["gradient_error"]);
  result.replayed = peer_steps_from(json.at("replayed"));
  for (const Json& peer : json.at("peers")) result.peers.push_back(peer_steps_from(peer));
  return result;
}

}  // namespace flashstep::report
