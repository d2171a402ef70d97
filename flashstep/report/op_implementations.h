// Operators on tensors as implementations: who is measured in `flashstep bench ops` and `bench
// norm`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/types.h>

#include "flashstep/report/python_peer.h"
#include "flashstep/report/schema.h"
#include "flashstep/report/turns.h"

namespace flashstep::report {

inline constexpr const char* kForwardPass = "forward";  // without a graph for backward
inline constexpr const char* kBothPasses = "forward-backward";
inline constexpr const char* kUpdatePass = "update";

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

// A leaf of standard normal numbers in "fp32" or "bf16", times `scale` and plus `shift`.
at::Tensor random_leaf(at::IntArrayRef shape, const std::string& dtype, const at::Device& device,
                       double scale = 1, double shift = 0);

// {"median", "p10", "p90", "calls", "traffic", "rate", "of limit"}, then "x BASELINE" and both
// errors: of records with the facts "bytes" and "limit seconds".
Schema op_schema(const std::string& baseline);

}  // namespace flashstep::report
