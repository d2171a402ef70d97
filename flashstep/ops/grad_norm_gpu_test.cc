// The norm's kernels: against float64, and that bits follow from sizes alone.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::same_bits;

const at::TensorOptions kOnGpu(at::kCUDA);
const at::ScalarType kGradientDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
// A thread adds 10 times before float64 takes over, half of whose relative error the root has, and
// rounds once.
constexpr double kTolerance = 6.0 / (1 << 24);

class GradNormGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::manual_seed(3);
  }
};

double oracle(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) {
    sum += tensor.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

void expect_norm(const std::vector<Tensor>& tensors, const std::string& what) {
  const Tensor norm = grad_norm(tensors);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_EQ(norm.device(), tensors.front().device());
  const double expected = oracle(tensors);
  EXPECT_TRUE(std::abs(norm.item<double>() - expected) <= kTolerance * expected)
      << what << ": got " << norm.item<double>() << ", expected " << expected;
  EXPECT_TRUE(same_bits(grad_norm(tensors), norm)) << what << ", again";
}

TEST_F(GradNormGpu, AgreesWithFloat64) {
  std::vector<Tensor> all;
  for (const auto dtype : kGradientDtypes) {
    for (const int64_t size : {0, 1, 3, 4, 7, 8, 8191, 8192, 8193, 65'537, 1'000'003}) {
      all.push_back(at::randn({size}, kOnGpu).to(dtype));
      if (size > 0) expect_norm({all.back()}, flashstep::str(dtype, " ", size));
      // Equal squares: an error that has a direction adds up.
      expect_norm({at::full({size}, 0.1, kOnGpu.dtype(dtype))}, flashstep::str("0.1, ", size));
    }
  }
  expect_norm(all, "all sizes and dtypes");
  std::reverse(all.begin(), all.end());
  expect_norm(all, "the other way round");
}

TEST_F(GradNormGpu, ThousandsOfTensors) {
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < 3'000; ++i)
    tensors.push_back(at::randn({1 + i * 37 % 501}, kOnGpu).to(kGradientDtypes[i % 3]));
  expect_norm(tensors, "3,000 tensors");
  tensors.resize(1'361);  // one more than a launch takes
  expect_norm(tensors, "1,361 tensors");
  tensors.resize(1'360);
  expect_norm(tensors, "1,360 tensors");
}

TEST_F(GradNormGpu, BitsDoNotDependOnWhereTensorsLie) {
  for (const auto dtype : kGradientDtypes) {
    const Tensor aligned = at::randn({65'537}, kOnGpu).to(dtype);
    const Tensor norm = grad_norm({aligned});
    for (int64_t offset = 1; offset < 8; ++offset) {
      const Tensor room = at::full({65'537 + 16}, NAN, aligned.options());
      const Tensor moved = room.slice(0, offset, offset + 65'537);
      moved.copy_(aligned);
      EXPECT_TRUE(same_bits(grad_norm({moved}), norm)) << dtype << " from element " << offset;
    }
  }
}

TEST_F(GradNormGpu, TakesTensorsOfAnyStrides) {
  for (const auto dtype : kGradientDtypes) {
    const Tensor x = at::randn({130, 77}, kOnGpu).to(dtype);
    expect_norm({x.t()}, "axes in another order");
    expect_norm({x.slice(1, 3, 70)}, "columns");
    expect_norm({x.slice(0, 1, 100, 3)}, "every third row");
    expect_norm({x[0].expand({5, 77})}, "one row five times");
    expect_norm({at::randn({}, kOnGpu).to(dtype), x}, "a number");
  }
  expect_norm({at::randn({99}, kOnGpu.dtype(at::kDouble)), at::randn({9}, kOnGpu)}, "float64");
}

TEST_F(GradNormGpu, NothingAndNumbersThatAreNone) {
  EXPECT_EQ(grad_norm({at::zeros({0}, kOnGpu)}).item<double>(), 0);
  EXPECT_EQ(grad_norm({at::zeros({9'000}, kOnGpu)}).item<double>(), 0);
  EXPECT_EQ(grad_norm({at::full({2}, 6e4, kOnGpu.dtype(at::kHalf))}).item<float>(),
            static_cast<float>(6e4 * std::sqrt(2.0)));
  for (const int64_t place : {0, 8'190, 8'192, 99'999}) {
    for (const auto dtype : kGradientDtypes) {
      Tensor x = at::ones({100'000}, kOnGpu.dtype(dtype));
      x[place] = INFINITY;
      EXPECT_EQ(grad_norm({x}).item<double>(), INFINITY);
      x[place] = NAN;
      EXPECT_TRUE(std::isnan(grad_norm({at::ones({5}, kOnGpu), x}).item<double>()));
    }
  }
}

TEST_F(GradNormGpu, MoreElementsThan32BitsCount) {
  constexpr int64_t kNumel = (int64_t{1} << 31) + 12'345;  // 4.3 GB of bfloat16
  const Tensor x = at::ones({kNumel}, kOnGpu.dtype(at::kBFloat16));
  const double norm = std::sqrt(static_cast<double>(kNumel));
  EXPECT_NEAR(grad_norm({x}).item<double>(), norm, kTolerance * norm);
  x[kNumel - 1] = NAN;
  EXPECT_TRUE(std::isnan(grad_norm({x}).item<double>()));
}

TEST_F(GradNormGpu, InAGraphAndOnASideStream) {
  const std::vector<Tensor> tensors = {at::randn({100'003}, kOnGpu),
                                       at::randn({33}, kOnGpu).to(at::kBFloat16)};
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const Tensor norm = grad_norm(tensors);
  graph.capture_end();
  for (int i = 0; i < 3; ++i) {
    for (const Tensor& tensor : tensors) tensor.mul_(-1.5);
    graph.replay();
    EXPECT_TRUE(same_bits(norm, grad_norm(tensors))) << "replay " << i;
    EXPECT_NEAR(norm.item<double>(), oracle(tensors), 1e-6 * oracle(tensors));
  }
}

TEST_F(GradNormGpu, ClipsByAFloat32Factor) {
  for (const auto dtype : kGradientDtypes) {
    const std::vector<Tensor> gradients = {at::randn({4097}, kOnGpu).to(dtype),
                                           at::randn({}, kOnGpu).to(dtype),
                                           at::randn({7, 9}, kOnGpu).to(dtype).t()};
    const Tensor norm = grad_norm(gradients);
    const double max_norm = 0.7003 * norm.item<double>();
    const Tensor factor = clip_factor(norm, max_norm);
    std::vector<Tensor> expected;
    for (const Tensor& gradient : gradients)
      expected.push_back((gradient.to(at::kFloat) * factor).to(dtype));
    clip_to_norm(gradients, norm, max_norm);
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(same_bits(gradients[i], expected[i])) << dtype << " " << i;
  }
}

}  // namespace
}  // namespace flashstep
