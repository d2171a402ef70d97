// A model that is made and trained in no time, for the tests of this room.
#pragma once

#include <vector>

#include <torch/types.h>

#include "flashstep/model.h"
#include "flashstep/ops.h"
#include "flashstep/testing/sentences.h"

#define EXPECT_SAYS(text, call)                                                       \
  EXPECT_NE(flashstep::testing::refusal([&] { call; }).find(text), std::string::npos) \
      << flashstep::testing::refusal([&] { call; })

namespace flashstep::testing {

inline ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 61;
  config.context_length = 24;
  config.d_model = 24;
  config.d_ff = 40;
  config.num_layers = 3;
  config.num_heads = 4;
  return config;
}

// One training step's gradients in the order of parameters.
inline std::vector<at::Tensor> gradients(Transformer& model, const at::Tensor& tokens) {
  model->zero_grad();
  cross_entropy(model->forward(tokens.narrow(1, 0, 23)), tokens.narrow(1, 1, 23)).backward();
  std::vector<at::Tensor> out;
  for (const auto& parameter : model->parameters()) out.push_back(parameter.grad().clone());
  return out;
}

}  // namespace flashstep::testing
