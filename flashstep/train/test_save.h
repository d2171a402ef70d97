// What tests of save() and load_if_exists() share: a module with dropout and a buffer, optimizers.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"

namespace flashstep::testing {

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 8))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.2))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8, 6))};
  at::Tensor seen = register_buffer("seen", torch::zeros({}));
  explicit Net(uint64_t seed = 1) {
    torch::manual_seed(seed);
    for (const at::Tensor& p : parameters()) torch::nn::init::normal_(p);
  }
  at::Tensor forward(const at::Tensor& x) {
    seen += 1;
    return out(dropout(torch::relu(in(x))));
  }
};

// One directory for all ranks of a test, which begins without it.
class Folder {
 public:
  explicit Folder(const std::string& name, bool is_owner = true)
      : path(std::filesystem::temp_directory_path() /
             str("flashstep_save_", is_owner ? ::getpid() : ::getppid(), "_", name)),
        is_owner_(is_owner) {
    if (is_owner_) std::filesystem::remove_all(path);
  }
  ~Folder() {
    if (is_owner_) std::filesystem::remove_all(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path path;

 private:
  bool is_owner_;
};

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

template <typename Model>
void take_step(Model& model, torch::optim::Optimizer& optimizer, int rank = 0) {
  const at::Tensor x = torch::randn({4, 6}) + rank;  // of the generators that a checkpoint keeps
  model.forward(x).square().mean().backward();
  clip_grad_norm(optimizer, 0.5);
  optimizer.step();
  optimizer.zero_grad();
}

inline std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& t : module.parameters()) all.push_back(t.detach().clone());
  for (const at::Tensor& t : module.buffers()) all.push_back(t.clone());
  return all;
}

inline void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

inline OptimizerPtr make(int kind, const std::vector<at::Tensor>& parameters) {
  if (kind == 0) return std::make_unique<AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  if (kind == 1)
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
}

}  // namespace flashstep::testing
