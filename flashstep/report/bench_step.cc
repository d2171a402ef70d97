#include "flashstep/report/bench_step.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model/cost.h"
#include "flashstep/model/transformer.h"
#include "flashstep/ops/cross_entropy.h"
#include "flashstep/report/peer_process.h"
#include "flashstep/train/adamw.h"
#include "flashstep/train/step.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;

constexpr int64_t kWarmupSteps = 2;  // of each competitor, before its first turn

// Ours, ready to step.
class OurStep {
 public:
  OurStep(const StepCase& c, const std::string& precision)
      : model_(c.model, /*seed=*/0),
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(1e-4)),
        inputs_(torch::randint(c.model.vocab_size, {c.batch_size, c.model.context_length})),
        targets_(torch::randint(c.model.vocab_size, {c.batch_size, c.model.context_length})),
        step_(
            model_->parameters(), optimizer_,
            [this](int64_t, int64_t) { return cross_entropy(model_->forward(inputs_), targets_); },
            {.accumulation_steps = 1,
             .max_norm = 1.0,
             .precision = train::precision_by_name(precision)}) {}

  std::vector<double> run(int64_t steps) {
    std::vector<double> seconds;
    for (int64_t i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      step_.run(done_++);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      seconds.push_back(elapsed.count());
    }
    return seconds;
  }

 private:
  Transformer model_;
  train::AdamW optimizer_;
  at::Tensor inputs_, targets_;
  train::TrainStep step_;
  int64_t done_ = 0;
};

// The gradient for one sequence as one long vector in float64.
at::Tensor gradient(const StepCase& c, const std::string& precision, at::ScalarType dtype) {
  Transformer model(c.model, /*seed=*/0, torch::TensorOptions(dtype));
  const auto tokens =
      at::arange(c.model.context_length + 1, at::kLong).square() % c.model.vocab_size;
  const auto inputs = tokens.narrow(0, 0, c.model.context_length).unsqueeze(0);
  const auto targets = tokens.narrow(0, 1, c.model.context_length).unsqueeze(0);
  {
    const train::AutocastGuard autocast(at::kCPU, at::kBFloat16, train::AutocastGuard::Cache::kOn,
                                        precision == "bf16");
    cross_entropy(model->forward(inputs), targets).backward();
  }
  std::vector<at::Tensor> parts;
  for (const auto& parameter : model->parameters()) {
    parts.push_back(parameter.grad().flatten().to(at::kDouble));
  }
  return at::cat(parts);
}

// In float64 every operation takes its reference path.
double gradient_error(const StepCase& c, const std::string& precision) {
  const auto expected = gradient(c, "fp32", at::kDouble);
  const auto difference = gradient(c, precision, at::kFloat) - expected;
  const double error = (difference.norm() / expected.norm()).item<double>();
  const double tolerance = precision == "fp32" ? 1e-4 : 0.1;  // rounding errors of some ten layers
  if (!(error <= tolerance)) {
    throw MachineError(str("[bench step] ", c.name, " ", precision, ": expected a gradient within ",
                           tolerance, " of the reference, got ", error));
  }
  return error;
}

// One competitor beside ours.
struct Peer {
  std::string name;
  bool compiled;
  std::vector<double> seconds;
  std::string failure;
};

Json request(const StepCase& c, const std::string& precision, bool compiled) {
  return {{"vocab", c.model.vocab_size},  {"context", c.model.context_length},
          {"d_model", c.model.d_model},   {"d_ff", c.model.d_ff},
          {"layers", c.model.num_layers}, {"heads", c.model.num_heads},
          {"batch", c.batch_size},        {"precision", precision},
          {"compile", compiled},          {"threads", at::get_num_threads()}};
}

void take_turn(PeerProcess& process, Peer& peer, Json request, int64_t warmup, int64_t steps) {
  if (!peer.failure.empty()) return;
  request["warmup"] = warmup;
  request["steps"] = steps;
  const auto answer = process.ask(request.dump());
  const Json result = answer ? Json::parse(*answer, nullptr, /*allow_exceptions=*/false) : Json();
  if (!result.is_object() || !result.contains("seconds")) {
    peer.failure = str("PyTorch ", peer.name, " did not run");
    return;
  }
  for (const double s : result["seconds"]) peer.seconds.push_back(s);
}

measure::Table empty_table(const std::vector<Peer>& peers) {
  measure::Table table;
  table.title = "Training step on the CPU";
  table.columns = {measure::text_column("model"),
                   measure::number_column("parameters", "M", 2),
                   measure::text_column("precision"),
                   measure::number_column("time", "ms", 1),
                   measure::number_column("p10", "ms", 1),
                   measure::number_column("p90", "ms", 1),
                   measure::number_column("tokens", "1/s", 0),
                   measure::number_column("rate", "GFLOP/s", 1),
                   measure::number_column("of limit", "%", 1),
                   {"gradient error",
                    "",
                    measure::Align::kRight,
                    {measure::NumberFormat::Style::kScientific, 1}}};
  for (const Peer& peer : peers) {
    table.columns.push_back(measure::number_column(peer.name, "tokens/s", 0));
    table.columns.push_back(measure::number_column(str("x ", peer.name), "", 2));
  }
  return table;
}

// Measures one row; ours and the peers take turns.
std::vector<measure::Cell> measure_row(const StepCase& c, const std::string& precision,
                                       const BenchStepOptions& options, PeerProcess* process,
                                       std::vector<Peer>& peers, std::vector<double>& ratios) {
  OurStep ours(c, precision);
  ours.run(kWarmupSteps);
  std::vector<double> seconds;
  for (int64_t round = 0; round < options.rounds; ++round) {
    ours.run(1);  // the peers' turn has emptied the caches
    for (const double s : ours.run(options.steps)) seconds.push_back(s);
    for (Peer& peer : peers) {
      const int64_t warmup = round == 0 ? kWarmupSteps + 1 : 1;
      if (process)
        take_turn(*process, peer, request(c, precision, peer.compiled), warmup, options.steps);
    }
  }
  const auto tokens = static_cast<double>(c.batch_size * c.model.context_length);
  const double time = measure::median(seconds);
  const double flops = step_flops(c.model, c.batch_size, c.model.context_length);
  std::vector<measure::Cell> cells = {
      c.name,
      static_cast<double>(parameter_count(c.model)) / 1e6,
      precision,
      time * 1e3,
      measure::quantile(seconds, 0.1) * 1e3,
      measure::quantile(seconds, 0.9) * 1e3,
      tokens / time,
      flops / time / 1e9,
      100 * flops / time / measure::matmul_limit_flops("cpu", precision),
      gradient_error(c, precision)};
  for (const Peer& peer : peers) {
    if (peer.seconds.empty()) {
      cells.insert(cells.end(), {measure::Cell(), measure::Cell()});
      continue;
    }
    const double theirs = measure::median(peer.seconds);
    cells.insert(cells.end(), {measure::Cell(tokens / theirs), measure::Cell(theirs / time)});
    if (!peer.compiled) ratios.push_back(theirs / time);
  }
  return cells;
}

}  // namespace

std::vector<StepCase> peer_step_cases() {
  const auto make = [](const char* name, int64_t d_model, int64_t d_ff, int64_t layers,
                       int64_t heads, int64_t context, int64_t batch) {
    ModelConfig model;
    model.vocab_size = 4096;
    model.context_length = context;
    model.d_model = d_model;
    model.d_ff = d_ff;
    model.num_layers = layers;
    model.num_heads = heads;
    return StepCase{name, model, batch};
  };
  return {make("tiny", 128, 384, 4, 4, 128, 32), make("mini", 256, 704, 4, 8, 256, 16),
          make("base", 512, 1376, 6, 8, 256, 8)};
}

measure::Table bench_step(const BenchStepOptions& options) {
  std::vector<Peer> peers;
  std::unique_ptr<PeerProcess> process;
  if (!options.peer_command.empty()) {
    if (options.eager) peers.push_back({"eager", false, {}, ""});
    if (options.compiled) peers.push_back({"compiled", true, {}, ""});
    process = std::make_unique<PeerProcess>(options.peer_command);
    if (!process->read_line()) process.reset();  // no PyTorch there
  }
  measure::Table table = empty_table(peers);
  if (!peers.empty() && !process) {
    table.notes.push_back(str("No peer: ", join(options.peer_command, " "), " did not start."));
  }
  std::vector<double> ratios;
  for (const StepCase& c : options.cases) {
    for (const std::string& precision : options.precisions) {
      if (options.progress) options.progress(str(c.name, " ", precision));
      std::vector<Peer> contestants = peers;
      table.add_row(measure_row(c, precision, options, process.get(), contestants, ratios));
      for (const Peer& peer : contestants) {
        if (!peer.failure.empty()) {
          table.notes.push_back(str(c.name, " ", precision, ": ", peer.failure, "."));
        }
      }
    }
  }
  table.notes.push_back(str("Median of ", options.rounds * options.steps, " steps in ",
                            options.rounds, " turns; ",
                            measure::one_line(measure::describe_machine()), "."));
  if (!ratios.empty()) {
    const double worst = *std::min_element(ratios.begin(), ratios.end());
    table.notes.push_back(str("Verdict: ", worst >= 1 ? "at least " : "NOT everywhere at least ",
                              "PyTorch eager's speed; the worst case has ", fixed(worst, 2),
                              " times its tokens/s, the geometric mean is ",
                              fixed(measure::geometric_mean(ratios), 2), "."));
  }
  return table;
}

}  // namespace flashstep::report
