// What Muon's tests, on CPU and GPU, update.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/ops/muon.h"

namespace flashstep::testing {

struct MuonCase {
  // Square, wide, tall; of several shapes, some of which come twice; odd ones.
  std::vector<std::pair<int64_t, int64_t>> shapes = {{64, 64}, {32, 96}, {96, 32}, {64, 64},
                                                     {1, 7},   {33, 5},  {32, 96}, {128, 130}};
  at::Device device = at::kCPU;
  at::ScalarType parameter = at::kFloat, momenta = at::kFloat;
  std::vector<at::ScalarType> gradients = {at::kFloat};  // by turns
  bool has_copies = false;
  // Parameters by columns; gradients that begin one element behind an aligned address.
  bool by_columns = false, misaligned = false;
};

inline MuonTensors make_muon_tensors(const MuonCase& c, uint64_t seed = 5) {
  at::manual_seed(seed);
  MuonTensors tensors;
  const auto options = at::TensorOptions(c.device).dtype(at::kFloat);
  for (size_t i = 0; i < c.shapes.size(); ++i) {
    const auto random = [&] { return at::randn({c.shapes[i].first, c.shapes[i].second}, options); };
    const auto laid = [&](const at::Tensor& x) {
      return c.by_columns ? x.t().contiguous().t() : x;
    };
    const auto shifted = [&](const at::Tensor& x) {
      if (!c.misaligned) return x;
      const at::Tensor memory = at::empty({x.numel() + 1}, x.options());
      return memory.narrow(0, 1, x.numel()).view(x.sizes()).copy_(x);
    };
    tensors.parameters.push_back(laid(random().to(c.parameter)));
    tensors.gradients.push_back(shifted(random().to(c.gradients[i % c.gradients.size()])));
    tensors.momenta.push_back(laid((random() * 0.1).to(c.momenta)));
    tensors.steps.push_back(at::full({}, static_cast<double>(3 * i), options));
    if (!c.has_copies) continue;
    tensors.copies.push_back(
        i % 3 == 2 ? at::Tensor()
                   : tensors.parameters.back().to(i % 3 == 0 ? at::kBFloat16 : at::kHalf));
  }
  return tensors;
}

inline MuonSettings make_muon_settings(at::Device device) {
  MuonSettings settings;
  settings.learning_rate = at::full({}, 1e-2, at::TensorOptions(device).dtype(at::kFloat));
  return settings;
}

inline MuonTensors cloned(MuonTensors tensors) {
  for (auto* list : {&tensors.parameters, &tensors.gradients, &tensors.momenta, &tensors.steps,
                     &tensors.copies}) {
    for (at::Tensor& tensor : *list) {
      if (tensor.defined()) tensor = tensor.clone();
    }
  }
  return tensors;
}

// Of x (M, N) in float64: the formula of ops/muon.h by singular values, on which alone it works.
inline at::Tensor orthogonalized_oracle(const at::Tensor& x, int64_t iterations = 5) {
  const auto [u, s, v] = at::linalg_svd(x.to(at::kCPU, at::kDouble), /*full_matrices=*/false);
  at::Tensor values = s / s.norm().clamp_min(1e-7);
  for (int64_t i = 0; i < iterations; ++i)
    values = 3.4445 * values - 4.7750 * values.pow(3) + 2.0315 * values.pow(5);
  return at::matmul(u * values, v);
}

// What an update makes of parameter i, in float64 on the CPU, with gradients times `factor`; first
// the parameter, then its momentum.
inline std::pair<at::Tensor, at::Tensor> muon_oracle(const MuonTensors& tensors,
                                                     const MuonSettings& settings, size_t i,
                                                     double factor = 1) {
  const auto wide = [](const at::Tensor& x) { return x.to(at::kCPU, at::kDouble); };
  const double keep = settings.momentum, rate = settings.learning_rate.item<double>();
  const at::Tensor g = wide(tensors.gradients[i]) * factor, p = wide(tensors.parameters[i]);
  const at::Tensor m = keep * wide(tensors.momenta[i]) + (1 - keep) * g;
  const at::Tensor o =
      orthogonalized_oracle(settings.nesterov ? keep * m + (1 - keep) * g : m, settings.iterations);
  const auto longest = static_cast<double>(std::max(p.size(0), p.size(1)));
  return {p - rate * settings.weight_decay * p - rate * 0.2 * std::sqrt(longest) * o, m};
}

}  // namespace flashstep::testing
