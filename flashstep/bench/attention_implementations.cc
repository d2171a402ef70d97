#include "flashstep/bench/attention_implementations.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SDPBackend.h>
#include <nlohmann/json.hpp>
#include <torch/serialize.h>

#include "flashstep/attention.h"
#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/machine.h"

namespace flashstep::tools {
namespace {

constexpr double kMatrixHeldBytes = 1e9;  // more is given back after each turn

// Something that is a function of tensors in this process.
class TensorAttention : public AttentionImplementation {
 public:
  // `matrices`: the formula's (N, M) matrices are kept for the backward pass.
  TensorAttention(const AttentionRound& round, AttentionForward forward, bool without_heads,
                  bool matrices)
      : AttentionImplementation(round), forward_(std::move(forward)) {
    for (const auto& set : round.inputs) sets_.push_back(leaves_of(set, without_heads));
    const double bytes = attention_matrix_bytes(size_of(round.c), element_bytes(round.c.dtype));
    large_ = matrices && bytes > kMatrixHeldBytes / 16;
    release_ = matrices && bytes > kMatrixHeldBytes;
  }

  AttentionOutcome outcome(bool gradients) override {
    return outcome_of(forward_, sets_[0], gradients);
  }

  std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    prepare(pass);
    const auto work = [&](int64_t number) { call(pass, number); };
    for (int64_t i = 0; i < warmup; ++i) work(next_++);
    std::vector<double> seconds = seconds_of_calls(work, round_.device, next_, samples, calls);
    next_ += samples * calls;
    if (release_) outs_.clear();
    return seconds;
  }

  std::vector<double> graph(const std::string& pass, int64_t samples, int64_t calls) override {
    if (!round_.device.is_cuda()) return {};
    prepare(pass);
    GpuGraph captured([&](int64_t number) { call(pass, number); }, calls);
    return captured.seconds(samples);
  }

 private:
  at::Tensor out_of(const AttentionInputs& set) const { return forward_(set.q, set.k, set.v); }

  // The outputs that backward starts from, computed once.
  void prepare(const std::string& pass) {
    if (pass != "backward" || !outs_.empty()) return;
    const size_t held = large_ ? 1 : sets_.size();
    for (size_t i = 0; i < held; ++i) outs_.push_back(out_of(sets_[i]));
  }

  void call(const std::string& pass, int64_t number) {
    const bool backward_alone = pass == "backward";
    const size_t count = backward_alone ? outs_.size() : sets_.size();
    const size_t index = static_cast<size_t>(number) % count;
    const at::Tensor out = backward_alone ? outs_[index] : out_of(sets_[index]);
    if (pass != "forward") gradients_of(out, sets_[index], /*retain_graph=*/backward_alone);
  }

  AttentionForward forward_;
  bool large_ = false, release_ = false;
  std::vector<AttentionInputs> sets_;
  std::vector<at::Tensor> outs_;
  int64_t next_ = 0;
};

// ---- peers

void use_backends(bool flash, bool efficient, bool math, bool cudnn) {
  auto& context = at::globalContext();
  context.setSDPUseFlash(flash);
  context.setSDPUseMemEfficient(efficient);
  context.setSDPUseMath(math);
  context.setSDPUseCuDNN(cudnn);
}

using Backend = std::optional<at::SDPBackend>;  // none: as PyTorch chooses by itself

// As long as it lives, LibTorch has this backend alone, or all; then those that it had before.
class OnlyBackend {
 public:
  explicit OnlyBackend(const Backend& backend) {
    const auto used = [&](at::SDPBackend one) { return backend.value_or(one) == one; };
    use_backends(used(at::SDPBackend::flash_attention), used(at::SDPBackend::efficient_attention),
                 used(at::SDPBackend::math), used(at::SDPBackend::cudnn_attention));
  }
  ~OnlyBackend() { use_backends(flash_, efficient_, math_, cudnn_); }
  OnlyBackend(const OnlyBackend&) = delete;
  OnlyBackend& operator=(const OnlyBackend&) = delete;

 private:
  const bool flash_ = at::globalContext().userEnabledFlashSDP();
  const bool efficient_ = at::globalContext().userEnabledMemEfficientSDP();
  const bool math_ = at::globalContext().userEnabledMathSDP();
  const bool cudnn_ = at::globalContext().userEnabledCuDNNSDP();
};

// What LibTorch says while it looks for a backend.
class Reasons : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::string& text = warning.msg();
    for (const char* part : {"not used because", "runtime disabled", "not compiled"})
      if (contains(text, part)) return;
    if (first_.empty()) first_ = text.substr(0, text.find_first_of("\n.;"));
  }
  std::string first() const { return first_.empty() ? "no such kernel for this case" : first_; }

 private:
  std::string first_;
};

// A CPU has no allocator that says no in time: the process would be killed.
void refuse_what_does_not_fit(const AttentionRound& round) {
  if (!round.device.is_cpu()) return;
  constexpr double kMatrices = 5;  // that the formula and its gradient hold at once
  const double needed =
      kMatrices * attention_matrix_bytes(size_of(round.c), element_bytes(round.c.dtype));
  const auto memory = static_cast<double>(measure::describe_machine().memory_bytes);
  if (needed > memory / 2) {
    throw UserError(str("OOM: the formula needs ", human_bytes(static_cast<uint64_t>(needed)),
                        " of this machine's ", human_bytes(static_cast<uint64_t>(memory))));
  }
}

// The mask by which LibTorch is told of a window or documents, made once.
std::optional<at::Tensor> mask_of(const AttentionRound& round) {
  if (round.c.window == 0 && round.c.documents == 0) return std::nullopt;
  refuse_what_does_not_fit(round);
  return hidden_keys(round.c, 0, round.c.n, round.c.m, round.device).logical_not();
}

// Throws unless LibTorch computes the case with `backend`, the only one that is switched on.
void verify_backend(at::SDPBackend backend, const AttentionRound& round) {
  const OnlyBackend only(backend);
  Reasons reasons;
  const c10::WarningUtils::WarningHandlerGuard listening(&reasons);
  const auto& inputs = round.inputs[0];
  int64_t chosen = static_cast<int64_t>(at::SDPBackend::error);
  try {
    const auto q = inputs.q.detach().requires_grad_();
    const auto seen = mask_of(round);
    chosen = at::_fused_sdp_choice(q, inputs.k, inputs.v, seen, 0.0, round.c.causal && !seen);
  } catch (const c10::Error&) {  // "No available kernel": why was said as warnings
  }
  if (chosen != static_cast<int64_t>(backend)) throw UserError("refused: " + reasons.first());
}

AttentionCandidate tensor_implementation(
    const std::string& name, bool ours, bool matrices,
    const std::function<AttentionForward(const AttentionRound&)>& function) {
  const auto make = [=](const AttentionRound& round) {
    return std::make_unique<TensorAttention>(round, function(round), ours && round.c.heads == 0,
                                             matrices);
  };
  return {name, ours, make, function};
}

AttentionCandidate sdpa(const std::string& name, const Backend& backend = {}) {
  const bool matrices = backend == at::SDPBackend::math;
  return tensor_implementation(name, false, matrices, [backend](const AttentionRound& round) {
    if (backend) verify_backend(*backend, round);
    return [backend, causal = round.c.causal, seen = mask_of(round)](
               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      const OnlyBackend only(backend);
      return at::scaled_dot_product_attention(q, k, v, seen, 0.0, causal && !seen);
    };
  });
}

AttentionCandidate naive_peer() {
  return tensor_implementation("naive", false, true, [](const AttentionRound& round) {
    refuse_what_does_not_fit(round);
    // Made once: the mask is no part of the calls that are timed.
    const auto hidden = hidden_keys(round.c, 0, round.c.n, round.c.m, round.device);
    return [hidden](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return plain_attention(q, k, v, hidden);
    };
  });
}

// ---- ours

AttentionCandidate our(const std::string& name, bool deterministic = false) {
  const std::string shown = deterministic ? kDeterministic : name;
  return tensor_implementation(shown, true, false, [=](const AttentionRound& round) {
    // Some ten tensor operations a pair of tiles: of more pairs of query and key they take seconds
    // and say nothing new.
    const int64_t pairs =
        round.c.batch * std::max<int64_t>(round.c.heads, 1) * round.c.n * round.c.m;
    if (name == "tiled" && pairs > int64_t{1} << (round.device.is_cuda() ? 22 : 20))
      throw UserError("refused: too many tiles for tensor operations to be timed");
    AttentionOptions options{.causal = round.c.causal,
                             .implementation = name,
                             .window = round.c.attention_window(),
                             .documents = documents_of(round.c, round.device)};
    if (deterministic) options.deterministic = true;
    return [options](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return attention(q, k, v, options);
    };
  });
}

using Json = nlohmann::json;

class CompiledAttention : public AttentionImplementation {
 public:
  CompiledAttention(std::shared_ptr<PythonPeer> python, const AttentionRound& round)
      : AttentionImplementation(round), python_(std::move(python)) {
    const AttentionCase& c = round.c;
    case_ = {{"device", round.device.is_cuda() ? "cuda" : "cpu"},
             {"dtype", c.dtype},
             {"shape", {c.batch, std::max<int64_t>(c.heads, 1), c.n, c.head_dim}},
             {"keys", c.m},
             {"causal", c.causal},
             {"window", c.window},
             {"documents", c.documents},
             {"seed", round.seed},
             {"sets", round.inputs.size()},
             {"threads", at::get_num_threads()}};
  }

  AttentionOutcome outcome(bool gradients) override {
    const TemporaryFolder folder;
    const std::filesystem::path file = folder / "outcome.pt";
    python_->ask(case_, {{"do", "outcome"}, {"gradients", gradients}, {"file", file.string()}});
    const std::string bytes = read_file(file);
    const auto list = torch::pickle_load({bytes.begin(), bytes.end()}).toList();
    AttentionOutcome outcome;
    for (size_t i = 0; i < list.size() && i < outcome.size(); ++i)
      outcome[i] = list.get(i).toTensor().to(round_.device);
    return outcome;
  }

  std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    return python_->turn(case_, pass, warmup, samples, calls);
  }

 private:
  std::shared_ptr<PythonPeer> python_;
  Json case_;
};

}  // namespace

// The errors of what a pass computes.
void AttentionImplementation::note(const std::string& pass, Record& record) const {
  int64_t wrong = 0;
  double worst = 0;
  for (size_t i = 0; i < errors_.wrong.size(); ++i) {
    if (pass == (i == 0 ? "backward" : "forward")) continue;
    wrong += errors_.wrong[i];
    const double error = errors_.worst[i];
    if (!(error <= worst) && !std::isnan(worst)) worst = error;  // NaN stays
  }
  record.facts["wrong"] = wrong;
  record.facts["error"] = worst;
}

std::vector<AttentionCandidate> attention_candidates(const at::Device& device) {
  std::vector<AttentionCandidate> implementations;
  const std::string other_device = device.is_cuda() ? "cpu" : "cuda";
  for (const std::string& name : attention_implementations()) {
    if (name == "naive" || name == "sdpa" || name == other_device) continue;
    implementations.push_back(our(name));
  }
  if (device.is_cuda()) implementations.push_back(our("cuda", /*deterministic=*/true));
  implementations.push_back(naive_peer());
  implementations.push_back(sdpa("sdpa"));
  if (!device.is_cuda()) return implementations;
  for (const auto& [name, backend] : {std::pair("math", at::SDPBackend::math),
                                      {"flash", at::SDPBackend::flash_attention},
                                      {"efficient", at::SDPBackend::efficient_attention},
                                      {"cudnn", at::SDPBackend::cudnn_attention}})
    implementations.push_back(sdpa(name, backend));
  return implementations;
}

AttentionCandidate compiled_candidate(const std::vector<std::string>& command) {
  auto python = std::make_shared<PythonPeer>(command);
  return {"compiled", false,
          [python](const AttentionRound& round) {
            return std::make_unique<CompiledAttention>(python, round);
          },
          nullptr};
}

}  // namespace flashstep::tools
