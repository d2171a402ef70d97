// Every fused operator beside PyTorch's own, eager and through torch.compile: time, the least
// traffic it needs, and how near that comes to the machine's limit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/types.h>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/turns.h"

namespace flashstep::tools {

struct BenchOpsOptions {
  int64_t rows = 2048;  // tokens
  int64_t width = 768;  // d_model; d_ff is 8/3 of it
  int64_t vocab = 10'000;
  std::vector<std::string> ops = {};              // empty: all of op_names()
  std::vector<std::string> dtypes = {"fp32"};     // or "bf16"
  std::vector<std::string> implementations = {};  // empty: "flashstep", "eager", "compiled"
  std::string device = "cpu";
  double cell_seconds = 0.3;  // of an implementation in a case
  int64_t turns = 3;
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/ops_torch.py
  TellProgress progress = {};
};

std::vector<std::string> op_names();

// A line an operator, pass and implementation. An error of ours beyond twice PyTorch's in the same
// dtype is the report's failure, whoever is timed; only where PyTorch's own has no memory for its
// check there is nothing to hold ours against.
BenchReport bench_ops(const BenchOpsOptions& options);

// Operators on tensors as implementations: who is measured in `flashstep bench ops` and `bench
// norm`.

inline constexpr const char* kForwardPass = "forward";  // without a graph for backward
inline constexpr const char* kBothPasses = "forward-backward";
inline constexpr const char* kUpdatePass = "update";

inline const std::vector<std::string> kDifferentiable = {kForwardPass, kBothPasses};

using TensorOp = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

struct OpInputs {
  std::vector<at::Tensor> tensors;
  at::Tensor grad_out = {};  // undefined: the operator's value has no gradient
  // Of the first so many tensors, of grad_out and of the value, row i has nothing to do with row j:
  // they are compared with float64 in blocks. 0: all at once.
  size_t row_tensors = 0;
  bool in_place = false;  // the operator changes its tensors; its value is among them
};

// `op` beside `expected` in float64: the facts "error" (of the value) and "gradient error", the
// largest distance over the root mean square. Gradients of the tensors that require one. `inputs`
// must outlive it.
std::unique_ptr<Implementation> tensor_implementation(TensorOp op, TensorOp expected,
                                                      const OpInputs& inputs);

// The same in a process of Python, scripts/peers/ops_torch.py, whose requests have what is in `c`.
std::unique_ptr<Implementation> python_implementation(PythonPeer& peer, nlohmann::json c);

// `flashstep bench NAME` without title, how and pictures. Its table: `key`, "pass",
// "implementation", "median", "p10", "p90", "calls", "traffic", "rate", "of limit", "x BASELINE"
// and both errors, of records with the facts "bytes" and "limit seconds".
Benchmark op_benchmark(const std::string& name, const std::string& device, const Schema& key,
                       const std::string& baseline);

// A picture a dtype and pass.
std::vector<NamedPicture> op_pictures(
    const Records& records,
    const std::function<NamedPicture(const std::string& name, const Records&)>& draw);

// The fused operators, as `flashstep bench ops` measures them.
constexpr double kOpEpsilon = 1e-5;  // of norms

struct OpSize {
  int64_t rows = 0, width = 0, d_ff = 0, vocab = 0;  // tokens, C, F, V
  std::string dtype;
  at::Device device = at::kCPU;

  // A leaf of standard normal numbers, times `scale` and plus `shift`.
  at::Tensor draw(at::IntArrayRef shape, double scale = 1, double shift = 0) const;
  at::Tensor ids() const {
    return at::randint(vocab, {rows}, at::TensorOptions(at::kLong).device(device));
  }
  nlohmann::json request(const std::string& op) const;  // for python_implementation()
};

struct Work {
  double bytes = 0, flops = 0;  // the least
};

struct Operator {
  std::string name;
  std::vector<std::string> passes;
  std::function<OpInputs(const OpSize&)> inputs;
  TensorOp ours, eager, formula;  // eager: PyTorch's own; the formula is held against in float64
  std::function<Work(const OpSize&, bool with_backward)> work;
};

const std::vector<Operator>& operators();  // rms_norm first

// One of them in all its passes.
std::vector<Record> measure_operator(const BenchOpsOptions& options, const Operator& op,
                                     const std::string& dtype, PythonPeer& peer);

// The facts "bytes" and "limit seconds".
void add_work(std::vector<Record>& records, const Operator& op, const OpSize& size);

}  // namespace flashstep::tools
