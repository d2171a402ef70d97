// train's AdamW on a GPU: a step whose clipping is a factor in the update, beside one that clips
// first.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;
using torch::optim::AdamWOptions;

class TrainAdamWGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    torch::manual_seed(6);
  }
};

std::vector<Tensor> make_gpu_parameters(torch::ScalarType dtype = torch::kFloat) {
  std::vector<Tensor> parameters;
  for (const int64_t size : {1, 77, 5'000, 40'000}) {
    parameters.push_back(torch::randn({size}, torch::TensorOptions(torch::kCUDA)).to(dtype));
    parameters.back().requires_grad_();
  }
  return parameters;
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : parameters)
    copies.push_back(parameter.detach().clone().requires_grad_());
  return copies;
}

void give_gradients(std::vector<Tensor>& a, std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i].mutable_grad() = torch::randn_like(a[i].detach());
    b[i].mutable_grad() = a[i].grad().clone();
  }
}

AdamWOptions gpu_options(bool amsgrad) {
  return AdamWOptions(1e-2).weight_decay(0.1).amsgrad(amsgrad);
}

NamedTensors named_by_number(const std::vector<Tensor>& parameters) {
  NamedTensors named;
  for (size_t i = 0; i < parameters.size(); ++i)
    named.emplace_back(flashstep::str("p", i), parameters[i]);
  return named;
}

void expect_equal_runs(torch::ScalarType dtype, bool amsgrad, bool in_passing) {
  auto folded = make_gpu_parameters(dtype), clipped = copies_of(folded);
  AdamW one(folded, gpu_options(amsgrad)), other(clipped, gpu_options(amsgrad));
  EXPECT_EQ(one.clips_in_passing(), in_passing);
  const Tensor never = torch::zeros({}, torch::kCUDA), always = torch::ones({}, torch::kCUDA);
  for (int step = 0; step < 4; ++step) {
    give_gradients(folded, clipped);
    const Tensor& skip = step == 2 ? always : never;
    const std::vector<Tensor> gradients = gradients_of(folded), seen = gradients_of(clipped);
    const Tensor norm = grad_norm(gradients);
    const Tensor before = gradients.back().clone();
    one.step_clipped_unless(skip, {norm, 0.5}, gradients);
    EXPECT_EQ(gradients.back().equal(before), in_passing);
    clip_to_norm(seen, norm, 0.5);
    other.step_unless(skip);
  }
  const NamedTensors ours = optimizer_state(one, named_by_number(folded)),
                     theirs = optimizer_state(other, named_by_number(clipped));
  for (size_t i = 0; i < folded.size(); ++i) EXPECT_TRUE(same_bits(folded[i], clipped[i])) << i;
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(same_bits(ours[i].second, theirs[i].second)) << ours[i].first;
  }
  EXPECT_EQ(ours.back().first, "p3/step");
  EXPECT_EQ(ours.back().second.item<float>(), 3);
}

TEST_F(TrainAdamWGpu, ClippingInPassingHasTheBitsOfClippingFirst) {
  expect_equal_runs(torch::kFloat, false, true);
}
TEST_F(TrainAdamWGpu, WhatTheKernelDoesNotTakeIsClippedFirst) {
  expect_equal_runs(torch::kFloat, true, false);
  expect_equal_runs(torch::kBFloat16, false, false);
}

TEST_F(TrainAdamWGpu, StateTravelsToTheCpuAndBack) {
  auto first = make_gpu_parameters(), second = copies_of(first);
  AdamW one(first, gpu_options(false)), other(second, gpu_options(false));
  give_gradients(first, second);
  one.step();
  NamedTensors state = optimizer_state(one, named_by_number(first));
  for (auto& [name, tensor] : state) tensor = tensor.cpu();
  load_optimizer_state(other, named_by_number(second), state);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < first.size(); ++i) second[i].copy_(first[i]);
  }
  give_gradients(first, second);
  one.step();
  other.step();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(first[i], second[i])) << i;
}

}  // namespace
}  // namespace flashstep
