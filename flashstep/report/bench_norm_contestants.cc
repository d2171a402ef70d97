#include "flashstep/report/bench_norm_contestants.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/ops.h"
#include "flashstep/report/gpu_timing.h"
#include "flashstep/report/peer_process.h"

namespace flashstep::report {
namespace {

using at::Tensor;

using NormFunction =
    std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;

Tensor layer_norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, kNormEpsilon);
}

NormFunction norm_function(const std::string& name) {
  if (name == "layer_norm") return layer_norm_of;
  if (name == "libtorch") {
    return [](const Tensor& x, const Tensor& weight, const Tensor&) {
      return at::rms_norm(x, {x.size(-1)}, weight, kNormEpsilon);
    };
  }
  return [fused = name == "flashstep"](const Tensor& x, const Tensor& weight, const Tensor&) {
    return fused ? rms_norm(x, weight, kNormEpsilon) : rms_norm_reference(x, weight, kNormEpsilon);
  };
}

// y, dx, dweight and, where the norm has one, dbias.
std::vector<Tensor> norm_outcome(const NormFunction& norm, const NormInputs& in, bool has_bias) {
  std::vector<Tensor> leaves = {in.x, in.weight};
  if (has_bias) leaves.push_back(in.bias);
  std::vector<Tensor> outcome = {norm(in.x, in.weight, in.bias)};
  for (Tensor& gradient : torch::autograd::grad({outcome[0]}, leaves, {in.dy}))
    outcome.push_back(std::move(gradient));
  outcome[0] = outcome[0].detach();
  return outcome;
}

// The distance from an expected value that comes in parts.
class NormDistance {
 public:
  void add(const Tensor& found, const Tensor& expected) {
    const double largest = (found.to(at::kDouble) - expected).abs().max().item<double>();
    largest_ = largest > largest_ || std::isnan(largest) ? largest : largest_;
    squares_ += expected.square().sum().item<double>();
    count_ += static_cast<double>(expected.numel());
  }
  double over_root_mean_square() const { return largest_ / std::sqrt(squares_ / count_); }

 private:
  double largest_ = 0, squares_ = 0, count_ = 0;
};

// The same in float64, which is large, in blocks of rows, over which parameters' gradients add up.
NormErrors distance_from_float64(const std::vector<Tensor>& found, const NormInputs& in,
                                 bool has_bias) {
  constexpr int64_t kElements = 1 << 25;  // of a block: 256 MiB
  const int64_t rows = in.x.size(0), step = std::max<int64_t>(1, kElements / in.x.size(1));
  const NormFunction norm = norm_function(has_bias ? "layer_norm" : "naive");
  NormDistance y, dx, parameters;
  std::vector<Tensor> sums;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const auto wide = [](const Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(); };
    const NormInputs block = {wide(in.x.narrow(0, row, count)), wide(in.weight), wide(in.bias),
                              in.dy.narrow(0, row, count).to(at::kDouble)};
    const auto expected = norm_outcome(norm, block, has_bias);
    y.add(found[0].narrow(0, row, count), expected[0]);
    dx.add(found[1].narrow(0, row, count), expected[1]);
    for (size_t i = 2; i < expected.size(); ++i) {
      if (row == 0)
        sums.push_back(expected[i]);
      else
        sums[i - 2] += expected[i];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) parameters.add(found[i + 2], sums[i]);
  const double first = dx.over_root_mean_square(), second = parameters.over_root_mean_square();
  return {y.over_root_mean_square(), std::isnan(first) || first > second ? first : second};
}

class TensorNorm : public NormContestant {
 public:
  TensorNorm(const std::string& name, const NormInputs& inputs)
      : norm_(norm_function(name)), has_bias_(name == "layer_norm"), inputs_(inputs) {}

  NormErrors errors() override {
    return distance_from_float64(norm_outcome(norm_, inputs_, has_bias_), inputs_, has_bias_);
  }

  std::vector<double> seconds(const std::string& pass, int64_t warmup, int64_t calls) override {
    const NumberedCall call = [&](int64_t) {
      if (pass != "forward") {
        norm_outcome(norm_, inputs_, has_bias_);
        return;
      }
      const at::NoGradGuard no_graph;
      norm_(inputs_.x, inputs_.weight, inputs_.bias);
    };
    for (int64_t i = 0; i < warmup; ++i) call(i);
    if (inputs_.x.is_cuda()) return gpu_seconds(call, 0, calls, 1);
    std::vector<double> seconds;
    for (int64_t i = 0; i < calls; ++i) {
      const double start = measure::steady_seconds();
      call(i);
      seconds.push_back(measure::steady_seconds() - start);
    }
    return seconds;
  }

 private:
  NormFunction norm_;
  bool has_bias_;
  const NormInputs& inputs_;
};

class PythonNorm : public NormContestant {
 public:
  PythonNorm(const NormCase& c, const NormInputs& inputs, NormPeer& peer)
      : peer_(peer),
        request_({{"rows", c.rows},
                  {"width", c.width},
                  {"dtype", c.dtype},
                  {"device", inputs.x.is_cuda() ? "cuda" : "cpu"},
                  {"epsilon", kNormEpsilon},
                  {"threads", at::get_num_threads()}}) {}
  ~PythonNorm() override {
    try {
      ask({{"do", "release"}});
    } catch (const std::exception&) {  // it ended, and its memory with it
    }
  }

  NormErrors errors() override {
    const auto answer = ask({{"do", "errors"}});
    const auto number = [&](const char* key) {
      return answer.at(key).is_null() ? NAN : answer.at(key).get<double>();
    };
    return {number("y"), number("gradients")};
  }

  std::vector<double> seconds(const std::string& pass, int64_t warmup, int64_t calls) override {
    return ask({{"do", pass}, {"warmup", warmup}, {"calls", calls}}).at("seconds");
  }

 private:
  nlohmann::json ask(const nlohmann::json& what) {
    nlohmann::json request = request_;
    request.update(what);
    return nlohmann::json::parse(peer_.ask(request.dump()));
  }

  NormPeer& peer_;
  nlohmann::json request_;
};

}  // namespace

NormInputs norm_inputs(const NormCase& c, const at::Device& device) {
  const auto options =
      at::TensorOptions(c.dtype == "bf16" ? at::kBFloat16 : at::kFloat).device(device);
  const auto leaf = [](const Tensor& x) { return x.detach().requires_grad_(); };
  return {leaf(at::randn({c.rows, c.width}, options)),
          leaf(at::randn({c.width}, options) * 0.1 + 1), leaf(at::randn({c.width}, options)),
          at::randn({c.rows, c.width}, options)};
}

std::unique_ptr<NormContestant> make_norm_contestant(const std::string& name, const NormCase& c,
                                                     const NormInputs& inputs, NormPeer& peer) {
  if (name == "compiled") return std::make_unique<PythonNorm>(c, inputs, peer);
  return std::make_unique<TensorNorm>(name, inputs);
}

struct NormPeer::State {
  std::vector<std::string> command;
  std::unique_ptr<PeerProcess> process;
  std::string trouble = {};  // why there is none
};

NormPeer::NormPeer(std::vector<std::string> command)
    : state_(new State{std::move(command), nullptr}) {
  if (state_->command.empty()) state_->trouble = "no peer's program was given";
}
NormPeer::~NormPeer() = default;

std::string NormPeer::ask(const std::string& request) {
  State& s = *state_;
  if (s.process == nullptr && s.trouble.empty()) {
    s.process = std::make_unique<PeerProcess>(s.command);
    if (!s.process->read_line())
      s.trouble = str("\"", join(s.command, " "), "\" did not start: it needs Python's torch");
  }
  const auto answer = s.trouble.empty() ? s.process->ask(request) : std::nullopt;
  if (!answer && s.trouble.empty()) s.trouble = "the Python program ended";
  if (!s.trouble.empty()) throw MachineError(s.trouble);
  const auto json = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw MachineError("the Python program answered \"" + *answer + "\"");
  if (json.contains("error")) throw MachineError(json["error"].get<std::string>());
  return *answer;
}

}  // namespace flashstep::report
