// The same on a GPU: what threads copy through pinned memory arrives whole.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/train/host_copies.h"

namespace flashstep {
namespace {

TEST(HostCopiesGpu, AreEqualAndOfTheirOwn) {
  const auto gpu = torch::TensorOptions(torch::kCUDA);
  const std::vector<at::Tensor> tensors = {
      torch::randn({3, 5'000'011}, gpu),
      torch::randn({1'000, 1'001}, gpu.dtype(torch::kBFloat16)).t(),
      torch::randn({64, 64}, gpu).narrow(1, 3, 7),
      torch::ones({}, gpu.dtype(torch::kLong)),
      torch::empty({0, 4}, gpu),
      torch::arange(10)};
  std::vector<at::Tensor> before;
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.cpu().clone());
  // Of what the device has not done yet, too.
  before[0].mul_(2);
  at::Tensor busy = torch::zeros({8192, 8192}, gpu);
  for (int i = 0; i < 20; ++i) busy = busy.matmul(busy);
  tensors[0].mul_(2);
  const std::vector<at::Tensor> copies = copies_on_host(tensors);
  for (const at::Tensor& tensor : tensors) tensor.zero_();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(copies[i].is_cpu());
    EXPECT_TRUE(copies[i].equal(before[i])) << i;
  }
  EXPECT_EQ(copies[1].strides(), tensors[1].strides());
}

}  // namespace
}  // namespace flashstep
