#include "flashstep/train/host_copies.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace flashstep {
namespace {

TEST(HostCopies, AreEqualAndOfTheirOwn) {
  const std::vector<at::Tensor> tensors = {torch::randn({3, 5'000'011}),
                                           torch::randn({100, 101}).to(torch::kBFloat16).t(),
                                           torch::randn({64, 64}).narrow(1, 3, 7),
                                           torch::ones({}, torch::kLong),
                                           torch::empty({0, 4}),
                                           torch::randn({5, 5}).set_requires_grad(true)};
  std::vector<at::Tensor> before;
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.detach().clone());
  const std::vector<at::Tensor> copies = copies_on_host(tensors);
  for (const at::Tensor& tensor : tensors) tensor.detach().zero_();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(copies[i].equal(before[i])) << i;
    EXPECT_FALSE(copies[i].requires_grad());
  }
  EXPECT_EQ(copies[1].strides(), tensors[1].strides());
}

}  // namespace
}  // namespace flashstep
