#include "flashstep/ops/adamw.h"

#include <cmath>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/test_adamw.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::cloned;
using testing::expect_same_tensors;
using testing::make_adamw_settings;
using testing::make_adamw_tensors;

// In float64 the reference differs from the formula by betas that are float32 there.
TEST(AdamWOp, IsTheFormula) {
  AdamWTensors ours = make_adamw_tensors({.parameter = at::kDouble, .gradients = {at::kDouble}});
  AdamWSettings settings = make_adamw_settings(at::kCPU);
  settings.learning_rate = at::full({}, 1e-2, at::kDouble);
  const AdamWTensors oracle = testing::adamw_oracle(ours, settings, 1);
  adamw(ours, settings);
  for (size_t i = 0; i < ours.parameters.size(); ++i) {
    EXPECT_TRUE(testing::close(ours.parameters[i], oracle.parameters[i], 1e-6, 1e-6)) << i;
    EXPECT_TRUE(testing::close(ours.exp_avgs[i], oracle.exp_avgs[i], 1e-6, 1e-6)) << i;
    EXPECT_TRUE(testing::close(ours.exp_avg_sqs[i], oracle.exp_avg_sqs[i], 1e-6, 1e-6)) << i;
    EXPECT_EQ(ours.steps[i].item<double>(), oracle.steps[i].item<double>());
  }
}

TEST(AdamWOp, ClipsWithoutWritingGradients) {
  AdamWTensors ours = make_adamw_tensors({});
  AdamWTensors clipped = cloned(ours);
  AdamWSettings settings = make_adamw_settings(at::kCPU);
  const Tensor norm = grad_norm(ours.gradients);
  for (Tensor& gradient : clipped.gradients) gradient.mul_(clip_factor(norm, 0.5));
  adamw(clipped, settings);
  settings.norm = norm;
  settings.max_norm = 0.5;
  const AdamWTensors before = cloned(ours);
  adamw(ours, settings);
  clipped.gradients = before.gradients;
  expect_same_tensors(ours, clipped, "clipped in passing, and before");
}

TEST(AdamWOp, KeepsCopiesOfEveryDtype) {
  for (const bool amsgrad : {false, true}) {
    AdamWTensors ours = make_adamw_tensors({.gradients = {at::kBFloat16, at::kFloat, at::kHalf},
                                            .copies = {at::kBFloat16, at::kByte, at::kHalf},
                                            .amsgrad = amsgrad});
    AdamWTensors plain = cloned(ours);
    for (Tensor& gradient : plain.gradients) gradient = gradient.to(at::kFloat);
    plain.copies.clear();
    adamw(ours, make_adamw_settings(at::kCPU, amsgrad));
    adamw(plain, make_adamw_settings(at::kCPU, amsgrad));
    for (size_t i = 0; i < ours.parameters.size(); ++i) {
      EXPECT_TRUE(testing::same_bits(ours.parameters[i], plain.parameters[i])) << i;
      if (!ours.copies[i].defined()) continue;
      EXPECT_TRUE(
          testing::same_bits(ours.copies[i], plain.parameters[i].to(ours.copies[i].dtype())))
          << i;
    }
  }
}

// Constant gradients: v goes to their square, a thousandth of the way at a time, where rounding to
// the nearest would leave it; and on average it is there when float32's is.
TEST(AdamWOp, ShortMomentsAreRoundedByChance) {
  AdamWTensors ours = make_adamw_tensors({.sizes = {4'096}, .moments = at::kBFloat16});
  AdamWSettings settings = make_adamw_settings(at::kCPU);
  settings.beta1 = 0.9;
  settings.beta2 = 0.999;
  ours.exp_avgs[0].zero_();
  ours.exp_avg_sqs[0].fill_(1);
  ours.gradients[0].fill_(2);
  AdamWTensors wide = cloned(ours);
  wide.exp_avgs[0] = wide.exp_avgs[0].to(at::kFloat);
  wide.exp_avg_sqs[0] = wide.exp_avg_sqs[0].to(at::kFloat);
  for (int step = 0; step < 300; ++step) {
    adamw(ours, settings);
    adamw(wide, settings);
  }
  const auto mean = [](const Tensor& x) { return x.to(at::kDouble).mean().item<double>(); };
  EXPECT_GT(mean(wide.exp_avg_sqs[0]), 1.7);
  EXPECT_NEAR(mean(ours.exp_avg_sqs[0]), mean(wide.exp_avg_sqs[0]), 0.003);
  EXPECT_NEAR(mean(ours.exp_avgs[0]), mean(wide.exp_avgs[0]), 0.003);
  // Of each by itself: 300 roundings to multiples of 1/128 are a walk of at most 0.07.
  EXPECT_TRUE(testing::close(ours.exp_avg_sqs[0], wide.exp_avg_sqs[0], 0.4));
  EXPECT_GT(ours.exp_avg_sqs[0].to(at::kFloat).std().item<double>(), 0.001);
  // Again the same bits, and not those of another step.
  AdamWTensors again = make_adamw_tensors({.sizes = {999}, .moments = at::kBFloat16});
  AdamWTensors same = cloned(again), later = cloned(again);
  later.steps[0].add_(1);
  for (const auto* tensors : {&again, &same, &later}) adamw(*tensors, settings);
  expect_same_tensors(again, same, "repeated");
  EXPECT_FALSE(testing::same_bits(again.exp_avgs[0], later.exp_avgs[0]));
}

// Updates of a hundredth of the step between neighbouring bfloat16 numbers: rounded to the nearest
// they leave the parameters where they are.
TEST(AdamWOp, ShortParametersAreRoundedByChance) {
  AdamWSettings settings = make_adamw_settings(at::kCPU);
  settings.learning_rate.fill_(1.0 / 128 / 100);
  settings.weight_decay = 0;
  const auto after = [&](bool by_chance) {
    AdamWTensors tensors = make_adamw_tensors({.sizes = {4'096}, .parameter = at::kBFloat16});
    tensors.parameters[0].fill_(1);
    tensors.gradients[0].fill_(-1);
    tensors.exp_avgs[0].fill_(-1);
    tensors.exp_avg_sqs[0].fill_(1);
    settings.rounds_by_chance = by_chance;
    for (int step = 0; step < 200; ++step) adamw(tensors, settings);
    return tensors.parameters[0].to(at::kDouble);
  };
  EXPECT_EQ(after(false).max().item<double>(), 1);
  EXPECT_NEAR(after(true).mean().item<double>(), 1 + 2.0 / 128, 0.05 / 128);
  AdamWTensors again = make_adamw_tensors({.sizes = {999}, .parameter = at::kBFloat16});
  const AdamWTensors same = cloned(again);
  adamw(again, settings);
  adamw(same, settings);
  expect_same_tensors(again, same, "repeated");
}

TEST(AdamWOp, SkipsEverything) {
  AdamWTensors ours = make_adamw_tensors({.copies = {at::kBFloat16}});
  for (Tensor& gradient : ours.gradients) gradient.fill_(std::nan(""));
  const AdamWTensors before = cloned(ours);
  AdamWSettings settings = make_adamw_settings(at::kCPU);
  settings.skip = at::ones({});
  adamw(ours, settings);
  expect_same_tensors(ours, before, "skipped");
  const AdamWTensors rounded = make_adamw_tensors({.moments = at::kBFloat16});
  for (const Tensor& gradient : rounded.gradients) gradient.fill_(std::nan(""));
  const AdamWTensors rounded_before = cloned(rounded);
  adamw(rounded, settings);
  expect_same_tensors(rounded, rounded_before, "skipped, with bfloat16 moments");
  settings.rounds_by_chance = true;
  const AdamWTensors narrow = make_adamw_tensors({.parameter = at::kBFloat16});
  for (const Tensor& gradient : narrow.gradients) gradient.fill_(std::nan(""));
  const AdamWTensors narrow_before = cloned(narrow);
  adamw(narrow, settings);
  expect_same_tensors(narrow, narrow_before, "skipped, with bfloat16 parameters");
  adamw({}, settings);
}

TEST(AdamWOp, RefusesListsThatDoNotGoTogether) {
  const AdamWSettings settings = make_adamw_settings(at::kCPU);
  const auto refuses = [&](const auto& spoil) {
    AdamWTensors tensors = make_adamw_tensors({.sizes = {4, 5}, .copies = {at::kHalf}});
    AdamWSettings spoilt = settings;
    spoil(tensors, spoilt);
    const AdamWTensors before = cloned(tensors);
    EXPECT_THROW(adamw(tensors, spoilt), UserError);
    expect_same_tensors(tensors, before, "refused");
  };
  refuses([](auto& t, auto&) { t.gradients.pop_back(); });
  refuses([](auto& t, auto&) { t.exp_avgs.pop_back(); });
  refuses([](auto& t, auto&) { t.copies.pop_back(); });
  refuses([](auto& t, auto&) { t.gradients[0] = at::zeros({3}); });
  refuses([](auto& t, auto&) { t.copies[0] = at::zeros({4}); });
  refuses([](auto& t, auto&) { t.copies[0] = at::zeros({3}, at::kHalf); });
  refuses([](auto& t, auto&) { t.steps[0] = at::zeros({}, at::kDouble); });
  const auto every_second = [](const Tensor& x) {
    return x.repeat_interleave(2).slice(0, 0, 2 * x.numel(), 2);
  };
  refuses([&](auto& t, auto&) { t.exp_avgs[0] = every_second(t.exp_avgs[0]); });
  refuses([&](auto& t, auto&) { t.parameters[0] = every_second(t.parameters[0]); });
  refuses([](auto&, auto& s) { s.amsgrad = true; });
  refuses([](auto&, auto& s) { s.learning_rate = Tensor(); });
  refuses([](auto&, auto& s) { s.skip = at::zeros({2}); });
  refuses([](auto&, auto& s) { s.norm = at::ones({}); });
}

}  // namespace
}  // namespace flashstep
