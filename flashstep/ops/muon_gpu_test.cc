#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "flashstep/ops.h"
#include "flashstep/ops/muon.h"
#include "flashstep/ops/test_muon.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::MuonCase;

double relative(const Tensor& actual, const Tensor& expected) {
  const Tensor wide = actual.to(at::kCPU, at::kDouble);
  return ((wide - expected).norm() / expected.norm().clamp_min(1e-30)).item<double>();
}

class MuonOnGpuCases : public ::testing::TestWithParam<MuonCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, MuonOnGpuCases,
    ::testing::Values(
        MuonCase{.device = at::kCUDA},
        MuonCase{.device = at::kCUDA,
                 .momenta = at::kBFloat16,
                 .gradients = {at::kBFloat16, at::kHalf, at::kFloat},
                 .has_copies = true},
        MuonCase{.device = at::kCUDA,
                 .parameter = at::kBFloat16,
                 .momenta = at::kBFloat16,
                 .gradients = {at::kBFloat16}},
        MuonCase{.device = at::kCUDA, .has_copies = true, .by_columns = true},
        MuonCase{.device = at::kCUDA, .gradients = {at::kBFloat16}, .misaligned = true},
        // More than a launch takes.
        MuonCase{.shapes = std::vector<std::pair<int64_t, int64_t>>(700, {5, 9}),
                 .device = at::kCUDA},
        MuonCase{.shapes = {{768, 3072}, {3072, 768}, {768, 768}, {768, 3072}, {100, 3001}},
                 .device = at::kCUDA,
                 .gradients = {at::kBFloat16},
                 .has_copies = true}));

// The step that it takes is the oracle's within the error of bfloat16's products.
TEST_P(MuonOnGpuCases, FollowsTheFormula) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  const MuonTensors before = testing::make_muon_tensors(GetParam());
  MuonSettings settings = testing::make_muon_settings(at::kCUDA);
  settings.rounds_by_chance = GetParam().parameter == at::kBFloat16;
  settings.norm = at::full({}, 10.0, at::TensorOptions(at::kCUDA));
  settings.max_norm = 2;
  const MuonTensors after = testing::cloned(before), again = testing::cloned(before);
  muon(after, settings);
  muon(again, settings);
  const bool is_narrow = GetParam().parameter == at::kBFloat16;
  for (size_t i = 0; i < before.parameters.size(); ++i) {
    const auto [p, m] = testing::muon_oracle(before, settings, i, 2 / (10 + 1e-6));
    const Tensor start = before.parameters[i].to(at::kCPU, at::kDouble);
    const Tensor moved = after.parameters[i].to(at::kCPU, at::kDouble) - start;
    if (is_narrow) {
      EXPECT_LT(relative(after.parameters[i], p), 6e-3) << i;
    } else {
      EXPECT_LT(relative(moved, p - start), 0.05) << i;
    }
    EXPECT_LT(relative(after.momenta[i], m),
              before.momenta[i].scalar_type() == at::kFloat ? 1e-6 : 6e-3);
    EXPECT_EQ(after.steps[i].item<double>(), before.steps[i].item<double>() + 1);
    EXPECT_TRUE(testing::same_bits(after.parameters[i], again.parameters[i])) << i;
    if (after.copies.empty() || !after.copies[i].defined()) continue;
    const Tensor& copy = after.copies[i];
    EXPECT_TRUE(copy.equal(after.parameters[i].to(copy.scalar_type()))) << i;
  }
}

// Whose symmetric products are computed by blocks of rows, and mirrored.
TEST(MuonOnGpu, LargeMatricesAreThoseOfFloat64) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{2101, 2300}, {2304, 2048}, {4096, 4096}}) {
    const Tensor x = at::randn({2, m, n}, at::TensorOptions(at::kCUDA));
    const Tensor o = orthogonalized(x.to(at::kBFloat16)),
                 again = orthogonalized(x.to(at::kBFloat16));
    EXPECT_TRUE(testing::same_bits(o, again));
    EXPECT_LT(relative(o, orthogonalized(x.to(at::kDouble)).cpu()), 0.05) << m << " x " << n;
  }
}

// However gradients are aligned.
TEST(MuonOnGpu, BitsDoNotDependOnAlignment) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  MuonCase c{.device = at::kCUDA, .momenta = at::kBFloat16, .gradients = {at::kBFloat16}};
  const MuonTensors aligned = testing::make_muon_tensors(c);
  c.misaligned = true;
  const MuonTensors misaligned = testing::make_muon_tensors(c);
  const MuonSettings settings = testing::make_muon_settings(at::kCUDA);
  muon(aligned, settings);
  muon(misaligned, settings);
  for (size_t i = 0; i < aligned.parameters.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(aligned.momenta[i], misaligned.momenta[i])) << i;
    EXPECT_TRUE(testing::same_bits(aligned.parameters[i], misaligned.parameters[i])) << i;
  }
}

// Rounded to the nearest, as everybody's optimizers do it.
TEST(MuonOnGpu, TakesBFloat16WithoutChance) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  const MuonTensors tensors = testing::make_muon_tensors({.device = at::kCUDA,
                                                          .parameter = at::kBFloat16,
                                                          .momenta = at::kBFloat16,
                                                          .gradients = {at::kBFloat16}});
  const MuonTensors before = testing::cloned(tensors);
  const MuonSettings settings = testing::make_muon_settings(at::kCUDA);
  muon(tensors, settings);
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const auto [p, m] = testing::muon_oracle(before, settings, i);
    EXPECT_LT(relative(tensors.parameters[i], p), 6e-3) << i;
    EXPECT_LE((tensors.momenta[i].to(at::kCPU, at::kDouble) - m).abs().max().item<double>(),
              m.abs().max().item<double>() / 250)
        << i;
  }
}

TEST_P(MuonOnGpuCases, SkipsOnTheDevice) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  const MuonTensors before = testing::make_muon_tensors(GetParam());
  MuonSettings settings = testing::make_muon_settings(at::kCUDA);
  settings.rounds_by_chance = GetParam().parameter == at::kBFloat16;
  settings.skip = at::ones({}, at::TensorOptions(at::kCUDA));
  const MuonTensors after = testing::cloned(before);
  for (const Tensor& gradient : after.gradients)
    gradient.fill_(std::numeric_limits<float>::quiet_NaN());
  muon(after, settings);
  for (size_t i = 0; i < before.parameters.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(after.parameters[i], before.parameters[i])) << i;
    EXPECT_TRUE(testing::same_bits(after.momenta[i], before.momenta[i])) << i;
    EXPECT_TRUE(after.steps[i].equal(before.steps[i])) << i;
  }
}

}  // namespace
}  // namespace flashstep
