// One case of `flashstep bench step`: ours and the peers, in turns.
#include <memory>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/step.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/model/cost.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/train/tensor_memory.h"

namespace flashstep::tools {
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
  model->set_float8_products(!reference && workload.precision == "bf16-fp8");
  model->set_recompute(recompute_by_name(workload.recompute), workload.recompute_group,
                       workload.recompute_blocks);
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

Json request_of(const StepTask& task, const std::string& peer) {
  const Workload& w = task.workload;
  return {{"vocab", w.model.vocab_size},
          {"context", w.model.context_length},
          {"d_model", w.model.d_model},
          {"d_ff", w.model.d_ff},
          {"layers", w.model.num_layers},
          {"heads", w.model.num_heads},
          {"kv_heads", w.model.kv_heads()},
          {"window", w.model.window},
          {"tied", w.model.tie_embeddings},
          {"theta", w.model.rope_theta},
          {"epsilon", w.model.norm_epsilon},
          {"batch", w.batch_size},
          {"precision", w.precision == "fp32-split" ? "fp32" : w.precision},
          {"mode", w.mode},
          {"device", w.device},
          {"max_norm", w.max_norm},
          {"compile", compile_mode(peer)},
          {"threads", at::get_num_threads()},
          {"steps", task.steps}};
}

// PyTorch in a process of its own, one for each way to run it.
void take_turn_of(PythonPeer& peer, const StepTask& task, int64_t turn, int64_t warmup,
                  Record& record) {
  const Json answer = peer.ask(request_of(task, record.implementation), {{"warmup", warmup}});
  if (!answer.contains("seconds")) throw MachineError("did not run");
  const Json& seconds = answer["seconds"];
  const auto part = [&](const char* name, size_t i) {
    return answer.contains(name) ? answer[name].at(i).get<double>() : 0.0;
  };
  for (size_t i = 0; i < seconds.size(); ++i) {
    add_step(
        record, turn, /*warmup=*/false,
        {part("forward", i), part("backward", i), part("optimizer", i), seconds[i].get<double>()});
  }
  if (answer.contains("peak_bytes"))
    record.facts["peak_bytes"] = answer["peak_bytes"].get<double>();
}

// Recorded anew in every turn: between turns the graph's memory is others'.
void take_replayed_turn(ModelRun& run, const StepTask& task, int64_t turn, Record& record) {
  run.start_replaying();
  constexpr int64_t kWarmup = 1;  // the first replay brings the graph to the device
  for (int64_t i = 0; i < kWarmup + task.steps; ++i) {
    check_interrupted("interrupted");
    add_step(record, turn, i < kWarmup, run.timed_replay());
  }
  run.stop_replaying();
}

bool is_replayed(const Record& record) { return record.implementation == kReplayed; }

}  // namespace

std::vector<Record> blanks_of(const StepTask& task) {
  std::vector<std::string> names = {kOurs};
  if (task.graph && has_update(task.workload)) names.emplace_back(kReplayed);
  names.insert(names.end(), task.peers.begin(), task.peers.end());
  std::vector<Record> blanks;
  for (const std::string& name : names)
    blanks.push_back({.implementation = name, .ours = blanks.empty()});
  return blanks;
}

void add_step(Record& record, int64_t turn, bool warmup, const StepTimes& times) {
  const std::string prefix = warmup ? "warm-up " : "";
  record.samples[prefix + "turn"].push_back(static_cast<double>(turn));
  times.add_to(record, prefix);
}

double gradient_tolerance(const std::string& precision) {
  // The rounding errors of some ten layers, with 24, 11, 8 and 3 bits.
  return precision == "fp32"         ? 1e-4
         : precision == "fp32-split" ? 1e-3
         : precision == "tf32"       ? 1e-2
         : precision == "bf16"       ? 0.1
                                     : 0.5;
}

double gradient_error(const Workload& workload) {
  const Tensor expected = gradient(workload, /*reference=*/true);
  const Tensor difference = gradient(workload, /*reference=*/false) - expected;
  return (difference.norm() / expected.norm()).item<double>();
}

void measure_step(const StepTask& task, std::vector<Record>& records, const TellRecords& told,
                  PythonPeers& started) {
  const auto tell = [&] {
    if (told) told(records);
  };
  const at::Device device = current_device(task.workload.device);
  at::empty({1}, device);   // LibTorch's allocator counts a GPU's memory from its first use on
  forget_compute_copies();  // of the case before, whose memory would count as ours
  const double before = memory_bytes(device);
  const Determinism determinism(task.deterministic);
  auto run = std::make_unique<ModelRun>(task.workload);
  reset_peak_memory(device);
  for (int64_t turn = 0; turn < task.turns; ++turn) {
    const int64_t warmup = turn == 0 ? task.warmup : 1;
    const bool last = turn + 1 == task.turns;
    for (Record& record : records) {
      if (record.implementation == kOurs) {
        for (int64_t i = 0; i < warmup + task.steps; ++i) {
          check_interrupted("interrupted");
          add_step(record, turn, i < warmup, run->timed_pass());
        }
        if (turn == 0) record.facts["peak_bytes"] = peak_memory_bytes(device) - before;
      } else if (is_replayed(record) && record.outcome.measured()) {
        reset_peak_memory(device);
        record.outcome = attempt([&] { take_replayed_turn(*run, task, turn, record); });
        record.facts["peak_bytes"] = peak_memory_bytes(device) - before;
        measure::release_cached_gpu_memory();
      } else if (record.outcome.measured()) {
        if (last && run != nullptr) {  // the peer may have our memory
          run.reset();
          if (device.is_cuda()) measure::release_cached_gpu_memory();
        }
        PythonPeer& peer =
            started.try_emplace(record.implementation, task.peer_command).first->second;
        // What is compiled is compiled in the first step.
        record.outcome = attempt(
            [&] { take_turn_of(peer, task, turn, turn == 0 ? warmup + 1 : warmup, record); });
        // Between cases it holds no model.
        if (last || !record.outcome.measured()) peer.tell_if_running({{"release", true}});
      }
      tell();
    }
  }
  run.reset();
  const Workload& workload = task.workload;
  if (!task.peers.empty() && has_backward(workload) &&
      parameter_count(workload.model) <= kCheckedParameters) {
    records.front().facts["gradient error"] = gradient_error(workload);
    tell();
  }
}

void bench_step_process(const std::string& text) {
  measure::offer_to_oom_killer();
  keep_memory_of_tensors();  // as flashstep train does
  const auto task = read_task<StepTask>(text);
  PythonPeers peers;
  std::vector<Record> records = blanks_of(task);
  const auto hand_over_all = [](const std::vector<Record>& all) { hand_over(to_json(all)); };
  measure_step(task, records, hand_over_all, peers);
}

}  // namespace flashstep::tools
