// Modules for tests of data parallelism: small, with what wrappers stumble over.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace flashstep::testing {

// Two trainable matrices around one with a frozen bias, a parameter that is neither used nor
// trained, and a buffer.
struct PlainToy : torch::nn::Module {
  static torch::nn::LinearOptions no_bias(int64_t in, int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(false);
  }
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(no_bias(10, 10)))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(10, 50))};
  torch::nn::Linear fc3{register_module("fc3", torch::nn::Linear(no_bias(50, 5)))};
  torch::Tensor fixed = register_parameter("fixed", torch::randn({2}), /*requires_grad=*/false);
  torch::Tensor counter = register_buffer("counter", torch::randn({3}));

  PlainToy() { fc2->bias.set_requires_grad(false); }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
};

// One matrix is used twice, under two names.
struct TiedToy : torch::nn::Module {
  torch::Tensor fc1 = register_parameter("fc1", torch::randn({50, 10}) / 3);
  torch::Tensor fc2 = register_parameter("fc2", torch::randn({10, 50}) / 7);
  torch::Tensor fc3 = register_parameter("fc3", torch::randn({50, 10}) / 3);
  torch::Tensor fc4 = register_parameter("fc4", fc2);
  torch::Tensor fc5 = register_parameter("fc5", torch::randn({5, 10}) / 3);

  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : {fc1, fc2, fc3, fc4}) x = at::relu(at::linear(x, weight));
    return at::linear(x, fc5);
  }
};

}  // namespace flashstep::testing
