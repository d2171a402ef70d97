// The fused operators, as `flashstep bench ops` measures them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/op_implementations.h"

namespace flashstep::report {

struct OpSize {
  int64_t rows = 0, width = 0, d_ff = 0, vocab = 0;  // tokens, C, F, V
  std::string dtype;
  at::Device device = at::kCPU;

  int64_t element_bytes() const { return dtype == "bf16" ? 2 : 4; }
  at::Tensor draw(at::IntArrayRef shape, double scale = 1, double shift = 0) const {
    return random_leaf(shape, dtype, device, scale, shift);
  }
  at::Tensor ids() const {
    return at::randint(vocab, {rows}, at::TensorOptions(at::kLong).device(device));
  }
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

const std::vector<Operator>& operators();

}  // namespace flashstep::report
