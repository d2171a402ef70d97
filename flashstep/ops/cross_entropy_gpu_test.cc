// The losses' CUDA kernels against the reference in float64; gradients of weights that are added
// up.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>

#include "flashstep/ops.h"
#include "flashstep/ops/test_op_gpu.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::expect_agreement_on_gpu;
using testing::kGpu;
using testing::Op;
using testing::OpsGpu;
using testing::randn;
using testing::random_targets;
using testing::run;

TEST_F(OpsGpu, CrossEntropyAgreesWithTheReference) {
  for (const int64_t classes :
       {1, 7, 8, 1000, 4096, 10000, 12296, 32768, 50257, 50304, 65544, 128256, 131077}) {
    for (const int64_t rows : {1, 70}) {
      const Tensor targets = random_targets(rows, classes);
      expect_agreement_on_gpu([&](const auto& x) { return cross_entropy(x[0], targets); },
                              [&](const auto& x) { return cross_entropy_reference(x[0], targets); },
                              {randn({rows, classes}) * 5}, str(rows, " rows of ", classes));
    }
  }
}

TEST_F(OpsGpu, CrossEntropyOfNumbersThatAreNone) {
  const Tensor targets = torch::tensor({1}, at::TensorOptions(kGpu).dtype(at::kLong));
  for (const int64_t classes : {40, 37}) {
    const auto loss = [&](float a, float b, int64_t target = 1) {
      Tensor x = torch::zeros({1, classes}, kGpu);
      x[0][0] = a;
      x[0][1] = b;
      return cross_entropy(x, at::full_like(targets, target)).item<float>();
    };
    const double others = static_cast<double>(classes - 1);
    EXPECT_NEAR(loss(1e4f, 1e4f), std::log(2.0), 1e-3);
    EXPECT_FLOAT_EQ(loss(3e38f, 0), 3e38f);
    EXPECT_NEAR(loss(-INFINITY, 0), std::log(others), 1e-5);
    EXPECT_TRUE(std::isnan(loss(NAN, 0)));
    EXPECT_TRUE(std::isnan(loss(0, NAN)));
    EXPECT_FALSE(std::isfinite(loss(INFINITY, 0)));
    const Tensor masked = torch::full({1, classes}, -INFINITY, kGpu);
    EXPECT_TRUE(std::isnan(cross_entropy(masked, targets).item<float>()));
    masked[0][1] = 3;
    EXPECT_NEAR(cross_entropy(masked, targets).item<float>(), 0, 1e-6);
    masked[0][0] = NAN;
    EXPECT_TRUE(std::isnan(cross_entropy(masked, targets).item<float>()));
    EXPECT_TRUE(std::isnan(loss(0, 0, -1)));
    EXPECT_TRUE(std::isnan(loss(0, 0, classes)));
  }
}

Op fused_loss(const Tensor& targets) {
  return [=](const auto& x) { return linear_cross_entropy(x[0], x[1], targets); };
}
Op unfused_loss(const Tensor& targets) {
  return [=](const auto& x) { return cross_entropy_reference(at::linear(x[0], x[1]), targets); };
}

TEST_F(OpsGpu, LinearCrossEntropyAgreesWithTheReference) {
  // The last takes several chunks, of 4,096 rows at most.
  const std::vector<std::vector<int64_t>> sizes = {
      {1, 8, 16},      {70, 33, 257},    {512, 64, 1000},   {1, 8, 13},
      {600, 64, 6442}, {900, 32, 50257}, {3400, 64, 10000}, {9001, 48, 10000}};
  for (const auto& size : sizes) {
    const Tensor targets = random_targets(size[0], size[2]);
    expect_agreement_on_gpu(fused_loss(targets), unfused_loss(targets),
                            {randn({size[0], size[1]}), randn({size[2], size[1]})},
                            testing::shape_text(size));
  }
}

// What a second backward finds in .grad, it adds to, in its place.
TEST_F(OpsGpu, WeightsGradientsAreAddedUp) {
  using Loss = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& ids)>;
  const std::vector<Loss> losses = {[](const auto& x, const auto& weight, const auto& ids) {
                                      return linear_cross_entropy(x, weight, ids);
                                    },
                                    [](const auto& x, const auto& weight, const auto& ids) {
                                      return (flashstep::embedding(weight, ids) * x).sum();
                                    }};
  for (const int64_t rows : {70, 9001}) {
    for (const Loss& loss : losses) {
      for (const bool is_short : {false, true}) {
        const Tensor ids = random_targets(rows, 10000), x = randn({rows, 48}),
                     weight = randn({10000, 48}).requires_grad_();
        const auto backward = [&] {
          const AutocastGuard guard(at::kCUDA, at::kBFloat16, AutocastGuard::Cache::kOff, is_short);
          (loss(x, weight, ids) * 0.5).backward();
        };
        backward();
        const Tensor once = weight.grad().clone();
        const double largest = once.abs().max().item<double>();
        const auto expect_sum = [&](double times) {
          EXPECT_TRUE(testing::close(weight.grad(), once * times, 2e-6 * largest))
              << rows << " rows, " << is_short << ", " << times << " times";
        };
        const void* const place = weight.grad().data_ptr();
        backward();
        EXPECT_EQ(weight.grad().data_ptr(), place);
        expect_sum(2);
        // Who holds the gradient goes on seeing it.
        const Tensor held = weight.grad();
        backward();
        EXPECT_TRUE(held.is_same(weight.grad()));
        expect_sum(3);
        // A hook sees the new part alone.
        Tensor seen;
        weight.register_hook([&](const Tensor& gradient) { seen = gradient; });
        backward();
        EXPECT_TRUE(testing::close(seen, once, 2e-6 * largest));
        expect_sum(4);
      }
    }
  }
}

// Every third position, and the first `whole`.
Tensor some_ignored(Tensor targets, int64_t whole) {
  const Tensor positions = at::arange(targets.numel(), targets.options()).view(targets.sizes());
  return targets.masked_fill((positions < whole) | (positions % 3 == 1), kIgnoredTarget);
}

TEST_F(OpsGpu, LossesLeaveIgnoredTargetsOut) {
  for (const int64_t classes : {7, 1000, 10000, 50257, 65544}) {
    const Tensor targets = some_ignored(random_targets(70, classes), 5);
    expect_agreement_on_gpu([&](const auto& x) { return cross_entropy(x[0], targets); },
                            [&](const auto& x) { return cross_entropy_reference(x[0], targets); },
                            {randn({70, classes}) * 5}, str("70 rows of ", classes));
    const Tensor logits = randn({70, classes});
    logits.narrow(0, 0, 5).fill_(NAN);  // nobody looks at them
    logits.requires_grad_();
    const Tensor loss = cross_entropy(logits, targets);
    loss.backward();
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << classes;
    EXPECT_TRUE(logits.grad().isfinite().all().item<bool>()) << classes;
    EXPECT_EQ(logits.grad().narrow(0, 0, 5).count_nonzero().item<int64_t>(), 0) << classes;
    const Tensor none = at::full_like(targets, kIgnoredTarget);
    EXPECT_TRUE(std::isnan(cross_entropy(logits, none).item<double>())) << classes;
  }
  // A chunk of ignored ones, and rows that are padded.
  for (const auto& [rows, classes] : {std::pair(9001, 10000), {600, 6442}, {70, 257}}) {
    const Tensor targets = some_ignored(random_targets(rows, classes), rows / 2);
    expect_agreement_on_gpu(fused_loss(targets), unfused_loss(targets),
                            {randn({rows, 48}), randn({classes, 48})},
                            str(rows, " rows of ", classes));
  }
}

TEST_F(OpsGpu, LinearCrossEntropyUnderAutocast) {
  const Tensor targets = random_targets(300, 1000);
  const Tensor x = randn({3, 100, 64}), weight = randn({1000, 64}) / 8;
  const auto with_autocast = [&](const Op& op) {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    auto results = run(op, {x, weight}, at::kFloat, at::kFloat);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    return results;
  };
  const Tensor rows = targets.view({3, 100});
  const auto got = with_autocast(fused_loss(rows)), naive = with_autocast(unfused_loss(rows)),
             oracle = run(unfused_loss(rows), {x, weight}, at::kFloat, at::kDouble);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kFloat);
    const double largest = oracle[i].abs().max().item<double>();
    EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i], 8e-3 * largest)) << i;
  }
}

TEST_F(OpsGpu, LinearCrossEntropyMakesNoGradientThatNobodyWants) {
  const Tensor targets = random_targets(10, 30), x = randn({10, 8}), weight = randn({30, 8});
  Tensor frozen = weight.clone(), wanted = x.clone().requires_grad_();
  linear_cross_entropy(wanted, frozen, targets).backward();
  EXPECT_TRUE(wanted.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::close(linear_cross_entropy(x, weight, targets),
                             cross_entropy_reference(at::linear(x, weight), targets), 1e-5));
}

}  // namespace
}  // namespace flashstep
