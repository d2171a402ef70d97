#include "flashstep/ops/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/test_muon.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::MuonCase;

TEST(Orthogonalized, IsThePolynomialOfSingularValues) {
  at::manual_seed(1);
  for (const auto& [m, n] : {std::pair{40, 40}, {16, 50}, {50, 16}, {1, 9}, {9, 1}}) {
    const Tensor x = at::randn({3, m, n}, at::kDouble);
    const Tensor o = orthogonalized(x), narrow = orthogonalized(x.to(at::kFloat));
    for (int64_t i = 0; i < 3; ++i) {
      const Tensor expected = testing::orthogonalized_oracle(x[i]);
      EXPECT_TRUE(at::allclose(o[i], expected, 1e-9, 1e-9)) << m << " x " << n;
      EXPECT_TRUE(at::allclose(narrow[i].to(at::kDouble), expected, 1e-4, 1e-5));
    }
  }
}

// Whatever its length, and its strides.
TEST(Orthogonalized, HasSingularValuesNear1) {
  at::manual_seed(2);
  const Tensor x = at::randn({2, 30, 60}) * 1e3;
  for (const Tensor& matrices : {x, x.transpose(1, 2), x.slice(2, 0, 60, 2)}) {
    const Tensor o = orthogonalized(matrices);
    ASSERT_EQ(o.sizes(), matrices.sizes());
    const Tensor values = at::linalg_svdvals(o);
    EXPECT_GT(values.min().item<double>(), 0.3);  // a square matrix has small ones
    EXPECT_LT(values.max().item<double>(), 1.25);
  }
  EXPECT_TRUE(orthogonalized(at::zeros({1, 4, 4})).equal(at::zeros({1, 4, 4})));
}

TEST(Orthogonalized, RefusesWhatIsNoMatrices) {
  EXPECT_THROW(orthogonalized(at::zeros({4, 4})), UserError);
  EXPECT_THROW(orthogonalized(at::zeros({1, 4, 4}, at::kHalf)), UserError);
}

TEST(Muon, FollowsTheFormula) {
  for (const bool nesterov : {true, false}) {
    for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
      const MuonTensors before = testing::make_muon_tensors({.gradients = {gradient}});
      MuonSettings settings = testing::make_muon_settings(at::kCPU);
      settings.nesterov = nesterov;
      const MuonTensors after = testing::cloned(before);
      muon(after, settings);
      for (size_t i = 0; i < before.parameters.size(); ++i) {
        const auto [p, m] = testing::muon_oracle(before, settings, i);
        EXPECT_TRUE(at::allclose(after.parameters[i].to(at::kDouble), p, 1e-4, 1e-5)) << i;
        EXPECT_TRUE(at::allclose(after.momenta[i].to(at::kDouble), m, 1e-5, 1e-6)) << i;
        EXPECT_EQ(after.steps[i].item<double>(), before.steps[i].item<double>() + 1);
        EXPECT_TRUE(after.gradients[i].equal(before.gradients[i]));
      }
    }
  }
}

TEST(Muon, ClipsAndSkips) {
  const MuonTensors before = testing::make_muon_tensors({});
  MuonSettings settings = testing::make_muon_settings(at::kCPU);
  settings.norm = at::full({}, 10.0);
  settings.max_norm = 2;
  const MuonTensors clipped = testing::cloned(before);
  muon(clipped, settings);
  const auto [p, m] = testing::muon_oracle(before, settings, 1, 2 / (10 + 1e-6));
  EXPECT_TRUE(at::allclose(clipped.momenta[1].to(at::kDouble), m, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(clipped.parameters[1].to(at::kDouble), p, 1e-4, 1e-5));

  settings.skip = at::ones({});
  const MuonTensors skipped = testing::cloned(before);
  skipped.gradients[0].fill_(std::numeric_limits<float>::quiet_NaN());
  muon(skipped, settings);
  for (size_t i = 0; i < before.parameters.size(); ++i) {
    EXPECT_TRUE(skipped.parameters[i].equal(before.parameters[i]));
    EXPECT_TRUE(skipped.momenta[i].equal(before.momenta[i]));
    EXPECT_TRUE(skipped.steps[i].equal(before.steps[i]));
  }
}

TEST(Muon, TakesWhatLiesByColumns) {
  const MuonTensors rows = testing::make_muon_tensors({}), before = testing::cloned(rows);
  MuonTensors columns = testing::cloned(rows);
  for (auto* list : {&columns.parameters, &columns.momenta}) {
    for (Tensor& tensor : *list) tensor = tensor.t().contiguous().t();
  }
  const MuonSettings settings = testing::make_muon_settings(at::kCPU);
  muon(rows, settings);
  muon(columns, settings);
  for (size_t i = 0; i < rows.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(columns.parameters[i], rows.parameters[i], 1e-4, 1e-5)) << i;
    EXPECT_FALSE(columns.parameters[i].equal(before.parameters[i])) << i;
  }
}

TEST(Muon, WritesCopies) {
  const MuonTensors tensors = testing::make_muon_tensors({.has_copies = true});
  muon(tensors, testing::make_muon_settings(at::kCPU));
  for (size_t i = 0; i < tensors.copies.size(); ++i) {
    const Tensor& copy = tensors.copies[i];
    if (!copy.defined()) continue;
    EXPECT_TRUE(copy.equal(tensors.parameters[i].to(copy.scalar_type())));
  }
}

// What is far below a bfloat16's last bit counts on average.
TEST(Muon, RoundsByChance) {
  const MuonCase narrow{.shapes = {{64, 96}},
                        .parameter = at::kBFloat16,
                        .momenta = at::kBFloat16,
                        .gradients = {at::kBFloat16}};
  const MuonTensors before = testing::make_muon_tensors(narrow);
  MuonSettings settings = testing::make_muon_settings(at::kCPU);
  settings.rounds_by_chance = true;
  settings.learning_rate.fill_(1e-5);
  settings.weight_decay = 0;
  const auto [p, m] = testing::muon_oracle(before, settings, 0);
  const Tensor start = before.parameters[0].to(at::kDouble);
  // Along what it should be, over many draws.
  Tensor moved = at::zeros_like(start);
  constexpr int kDraws = 400;
  for (int draw = 0; draw < kDraws; ++draw) {
    const MuonTensors after = testing::cloned(before);
    after.steps[0].fill_(draw);
    muon(after, settings);
    moved += after.parameters[0].to(at::kDouble) - start;
    const Tensor wrong = (after.momenta[0].to(at::kDouble) - m).abs();
    EXPECT_TRUE(wrong.le(m.abs() / 128 + 1e-6).all().item<bool>());
  }
  const Tensor wanted = (p - start) * kDraws;
  const double along = (moved * wanted).sum().item<double>() / wanted.square().sum().item<double>();
  EXPECT_NEAR(along, 1, 0.1);
}

// Whose symmetric products are computed by blocks of rows, the last of which is shorter.
TEST(Muon, LargeMatricesFollowTheFormula) {
  const int64_t n = 2100;
  ASSERT_LT(muon_block_rows(n), n);
  ASSERT_NE(n % muon_block_rows(n), 0);
  for (const bool is_tall : {false, true}) {
    const Tensor matrix = is_tall ? at::randn({2200, n}) : at::randn({n, 2200});
    const Tensor x = matrix / matrix.norm(), square = is_tall ? x.t().mm(x) : x.mm(x.t());
    const Tensor polynomial = -4.7750 * square + 2.0315 * square.mm(square);
    const Tensor expected = 3.4445 * x + (is_tall ? x.mm(polynomial) : polynomial.mm(x));
    const Tensor o = orthogonalized(matrix.unsqueeze(0), /*iterations=*/1)[0];
    EXPECT_LT((o - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
  }
  // All of them, and ten sixteenths of the symmetric ones.
  EXPECT_DOUBLE_EQ(muon_flops(100, 300), 5 * (4 * 100.0 * 100 * 300 + 2 * 1e6));
  EXPECT_DOUBLE_EQ(muon_flops(4096, 4096), 5 * (4 * 0.625 + 2) * std::pow(4096.0, 3));
}

TEST(Muon, RefusesListsThatDoNotGoTogether) {
  const MuonSettings settings = testing::make_muon_settings(at::kCPU);
  const auto refuses = [&](const auto& spoil) {
    MuonTensors tensors = testing::make_muon_tensors({});
    MuonSettings wrong = settings;
    spoil(tensors, wrong);
    EXPECT_THROW(muon(tensors, wrong), UserError);
  };
  refuses([](MuonTensors& t, MuonSettings&) { t.momenta.pop_back(); });
  refuses([](MuonTensors& t, MuonSettings&) { t.parameters[0] = t.parameters[0].view({-1}); });
  refuses([](MuonTensors& t, MuonSettings&) { t.gradients[0] = t.gradients[0].slice(0, 1); });
  refuses([](MuonTensors& t, MuonSettings&) { t.momenta[1] = t.momenta[1].to(at::kDouble); });
  refuses([](MuonTensors& t, MuonSettings&) { t.steps[0] = at::zeros({2}); });
  refuses([](MuonTensors&, MuonSettings& s) { s.learning_rate = at::zeros({}, at::kDouble); });
  refuses([](MuonTensors&, MuonSettings& s) { s.norm = at::ones({}); });
  refuses([](MuonTensors&, MuonSettings& s) { s.iterations = 0; });
  refuses([](MuonTensors& t, MuonSettings&) {
    t.copies.resize(t.parameters.size());
    t.copies[1] = t.parameters[1].clone();  // float32
  });
  muon({}, settings);
}

}  // namespace
}  // namespace flashstep
