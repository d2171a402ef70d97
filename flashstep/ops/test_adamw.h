// What AdamW's tests, on CPU and GPU, update.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/ops/adamw.h"
#include "flashstep/testing/compare.h"

namespace flashstep::testing {

// Around the ends of vectors, of what a thread takes, and of a block's chunk.
inline const std::vector<int64_t> kAdamWSizes = {0,    1,    3,    4,    7,      1023,
                                                 1024, 8191, 8192, 8193, 65'537, 100'003};

struct AdamWCase {
  std::vector<int64_t> sizes = kAdamWSizes;
  at::Device device = at::kCPU;
  at::ScalarType parameter = at::kFloat;
  std::vector<at::ScalarType> gradients = {at::kFloat};  // by turns
  std::vector<at::ScalarType> copies = {};               // by turns; kByte: none; empty: no list
  bool amsgrad = false;
  at::ScalarType moments = parameter;
};

// Random tensors, each with another number of updates behind it. v stays away from 0, where an
// update would make much of m's last bit.
inline AdamWTensors make_adamw_tensors(const AdamWCase& c, uint64_t seed = 5) {
  at::manual_seed(seed);
  AdamWTensors tensors;
  const auto options = at::TensorOptions(c.device).dtype(c.parameter);
  for (size_t i = 0; i < c.sizes.size(); ++i) {
    const auto random = [&] { return at::randn({c.sizes[i]}, options); };
    tensors.parameters.push_back(random());
    tensors.gradients.push_back(random().to(c.gradients[i % c.gradients.size()]));
    tensors.exp_avgs.push_back((random() * 0.1).to(c.moments));
    tensors.exp_avg_sqs.push_back(((random().square() + 0.1) * 0.01).to(c.moments));
    if (c.amsgrad) tensors.max_exp_avg_sqs.push_back((random().square() + 0.1) * 0.01);
    tensors.steps.push_back(at::full({}, static_cast<double>(37 * i % 1000),
                                     at::TensorOptions(c.device).dtype(at::kFloat)));
    if (c.copies.empty()) continue;
    const at::ScalarType dtype = c.copies[i % c.copies.size()];
    tensors.copies.push_back(dtype == at::kByte ? at::Tensor()
                                                : tensors.parameters.back().to(dtype));
  }
  return tensors;
}

inline AdamWSettings make_adamw_settings(at::Device device, bool amsgrad = false) {
  AdamWSettings settings;
  settings.learning_rate = at::full({}, 1e-2, at::TensorOptions(device).dtype(at::kFloat));
  settings.beta1 = 0.8;
  settings.beta2 = 0.97;
  settings.eps = 1e-7;
  settings.weight_decay = 0.1;
  settings.amsgrad = amsgrad;
  return settings;
}

using TensorLists = std::vector<std::vector<at::Tensor>*>;
inline TensorLists lists_of(AdamWTensors& t) {
  return {&t.parameters,      &t.gradients, &t.exp_avgs, &t.exp_avg_sqs,
          &t.max_exp_avg_sqs, &t.steps,     &t.copies};
}

inline AdamWTensors cloned(AdamWTensors tensors) {
  for (auto* list : lists_of(tensors)) {
    for (at::Tensor& tensor : *list) {
      if (tensor.defined()) tensor = tensor.clone();
    }
  }
  return tensors;
}

// All of one is all of the other, bit for bit.
inline void expect_same_tensors(AdamWTensors actual, AdamWTensors expected,
                                const std::string& what) {
  const TensorLists actual_lists = lists_of(actual), expected_lists = lists_of(expected);
  for (size_t list = 0; list < actual_lists.size(); ++list) {
    ASSERT_EQ(actual_lists[list]->size(), expected_lists[list]->size());
    for (size_t i = 0; i < actual_lists[list]->size(); ++i) {
      const at::Tensor &a = (*actual_lists[list])[i], &e = (*expected_lists[list])[i];
      ASSERT_EQ(a.defined(), e.defined());
      if (!a.defined()) continue;
      EXPECT_TRUE(same_bits(a, e)) << what << ", list " << list << ", tensor " << i;
    }
  }
}

// The formula in ops/adamw.h in float64, on the CPU; gradients taken times `factor`.
inline AdamWTensors adamw_oracle(AdamWTensors tensors, const AdamWSettings& s, double factor) {
  for (auto* list : lists_of(tensors)) {
    for (at::Tensor& tensor : *list) {
      if (tensor.defined()) tensor = tensor.detach().to(at::kCPU, at::kDouble);
    }
  }
  // What the kernels are given in float32, they are given here.
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  const double beta1 = rounded(s.beta1), beta2 = rounded(s.beta2);
  const double rate = s.learning_rate.item<double>();
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    at::Tensor &p = tensors.parameters[i], &m = tensors.exp_avgs[i], &v = tensors.exp_avg_sqs[i];
    const at::Tensor g = tensors.gradients[i] * factor;
    const double t = (tensors.steps[i] += 1).item<double>();
    p = p * (1 - rate * rounded(s.weight_decay));
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const at::Tensor root = v.sqrt() / std::sqrt(1 - std::pow(beta2, t)) + rounded(s.eps);
    p = p - rate / (1 - std::pow(beta1, t)) * m / root;
  }
  return tensors;
}

}  // namespace flashstep::testing
