// AdamW's kernel: PyTorch's bits where PyTorch has such a kernel, float64 beside it where not.
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "flashstep/ops.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/ops/test_adamw.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::AdamWCase;
using testing::cloned;
using testing::expect_same_tensors;
using testing::kGpu;
using testing::make_adamw_tensors;
using testing::same_bits;

const std::vector<at::ScalarType> kAllGradients = {at::kFloat, at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kAllCopies = {at::kBFloat16, at::kByte, at::kHalf, at::kByte,
                                                at::kHalf};  // five and three: every pair occurs

class AdamWGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  }
};

AdamWSettings settings_on_gpu(bool amsgrad = false) {
  return testing::make_adamw_settings(kGpu, amsgrad);
}

// Several updates by adamw() and by the reference, with other gradients and another rate each time.
void expect_reference_bits(const AdamWCase& c, AdamWSettings settings, const std::string& what) {
  AdamWTensors ours = make_adamw_tensors(c);
  const AdamWTensors reference = cloned(ours);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < ours.gradients.size(); ++i) {
      ours.gradients[i].mul_(-0.7);
      reference.gradients[i].copy_(ours.gradients[i]);
    }
    settings.learning_rate.fill_(0.01 * (step + 1));
    adamw(ours, settings);
    adamw_reference(reference, settings);
  }
  expect_same_tensors(ours, reference, what);
}

TEST_F(AdamWGpu, BitsAreThoseOfPyTorchsKernel) {
  for (const double weight_decay : {0.1, 0.0}) {
    AdamWSettings settings = settings_on_gpu();
    settings.weight_decay = weight_decay;
    expect_reference_bits({.device = kGpu}, settings, flashstep::str("decay ", weight_decay));
    settings.beta1 = 0.9;
    settings.beta2 = 0.999;
    settings.eps = 1e-8;
    expect_reference_bits({.device = kGpu}, settings, "usual settings");
  }
}

// The reference widens gradients, multiplies them and rounds the copies by kernels of their own.
TEST_F(AdamWGpu, OtherGradientsCopiesAndClippingHaveTheReferencesBits) {
  AdamWSettings settings = settings_on_gpu();
  const AdamWCase mixed{.device = kGpu, .gradients = kAllGradients, .copies = kAllCopies};
  expect_reference_bits(mixed, settings, "mixed dtypes");
  settings.norm = at::full({}, 3.7, at::TensorOptions(kGpu).dtype(at::kFloat));
  for (const double max_norm : {0.3, 3.7, 1e9}) {
    settings.max_norm = max_norm;
    expect_reference_bits(mixed, settings, flashstep::str("clipped to ", max_norm));
  }
}

TEST_F(AdamWGpu, ShortMomentsHaveTheReferencesBits) {
  AdamWSettings settings = settings_on_gpu();
  settings.norm = at::full({}, 3.7, at::TensorOptions(kGpu).dtype(at::kFloat));
  settings.max_norm = 0.5;
  expect_reference_bits(
      {.device = kGpu, .gradients = kAllGradients, .copies = kAllCopies, .moments = at::kBFloat16},
      settings, "bfloat16 moments");
}

TEST_F(AdamWGpu, ShortParametersRoundedByChanceHaveTheReferencesBits) {
  AdamWSettings settings = settings_on_gpu();
  settings.rounds_by_chance = true;
  settings.norm = at::full({}, 3.7, at::TensorOptions(kGpu).dtype(at::kFloat));
  settings.max_norm = 0.5;
  expect_reference_bits({.device = kGpu, .parameter = at::kBFloat16, .gradients = kAllGradients},
                        settings, "bfloat16 parameters");
}

TEST_F(AdamWGpu, AgreesWithFloat64) {
  for (const auto dtype : kAllGradients) {
    AdamWTensors ours = make_adamw_tensors({.device = kGpu, .gradients = {dtype}});
    AdamWSettings settings = settings_on_gpu();
    settings.norm = grad_norm(ours.gradients);
    settings.max_norm = 0.5;
    const double factor = 0.5 / (settings.norm.item<double>() + 1e-6);
    const AdamWTensors oracle = testing::adamw_oracle(ours, settings, factor);
    adamw(ours, settings);
    for (size_t i = 0; i < ours.parameters.size(); ++i) {
      // Some ten roundings of numbers below 6.
      EXPECT_TRUE(testing::close(ours.parameters[i], oracle.parameters[i], 1e-6, 1e-6)) << i;
      EXPECT_TRUE(testing::close(ours.exp_avgs[i], oracle.exp_avgs[i], 1e-7, 1e-6)) << i;
      EXPECT_TRUE(testing::close(ours.exp_avg_sqs[i], oracle.exp_avg_sqs[i], 1e-8, 1e-5)) << i;
      EXPECT_EQ(ours.steps[i].item<double>(), oracle.steps[i].item<double>());
    }
  }
}

// Every list at places of its own in larger memory, whose rest must stay.
TEST_F(AdamWGpu, BitsDoNotDependOnWhereTensorsLie) {
  for (const auto& [parameter, moments] : {std::pair{at::kFloat, at::kFloat},
                                           {at::kFloat, at::kBFloat16},
                                           {at::kBFloat16, at::kBFloat16}}) {
    const AdamWCase c{.device = kGpu,
                      .parameter = parameter,
                      .gradients = kAllGradients,
                      .copies = kAllCopies,
                      .moments = moments};
    AdamWSettings settings = settings_on_gpu();
    settings.rounds_by_chance = true;
    for (const bool alike : {true, false}) {
      for (int64_t offset = 1; offset < 5; ++offset) {
        const AdamWTensors expected = make_adamw_tensors(c);
        AdamWTensors moved = cloned(expected);
        adamw(expected, settings);
        std::vector<Tensor> rooms;
        auto lists = testing::lists_of(moved);
        for (size_t list = 0; list < lists.size(); ++list) {
          for (Tensor& tensor : *lists[list]) {
            if (!tensor.defined()) continue;
            const int64_t begin = offset + (alike ? 0 : static_cast<int64_t>(list));
            rooms.push_back(at::full({tensor.numel() + 16}, NAN, tensor.options()));
            const Tensor place = rooms.back().slice(0, begin, begin + tensor.numel());
            tensor = place.copy_(tensor.flatten()).view(tensor.sizes());
          }
        }
        adamw(moved, settings);
        expect_same_tensors(moved, expected, flashstep::str("from element ", offset));
        for (const Tensor& room : rooms) EXPECT_EQ(room.isnan().sum().item<int64_t>(), 16);
      }
    }
  }
}

TEST_F(AdamWGpu, ThousandsOfTensors) {
  AdamWCase c{.device = kGpu, .gradients = kAllGradients, .copies = kAllCopies};
  for (const size_t count : {510, 511, 3'000}) {
    c.sizes.clear();
    for (size_t i = 0; i < count; ++i) c.sizes.push_back(static_cast<int64_t>(i * 37 % 501));
    expect_reference_bits(c, settings_on_gpu(), flashstep::str(count, " tensors"));
  }
}

TEST_F(AdamWGpu, GradientsAndCopiesOfOtherStridesAndDtypes) {
  AdamWTensors ours = make_adamw_tensors(
      {.sizes = {4'800, 4'800, 4'800}, .device = kGpu, .copies = {at::kBFloat16}});
  for (auto* list : testing::lists_of(ours)) {
    if (list == &ours.steps) continue;
    for (Tensor& tensor : *list) tensor = tensor.view({60, 80});
  }
  for (auto* list : {&ours.parameters, &ours.exp_avgs, &ours.exp_avg_sqs}) {
    (*list)[0] = (*list)[0].t();  // dense, and walked in its own order
  }
  ours.gradients[0] = ours.gradients[0].t().contiguous();
  ours.copies[0] = ours.copies[0].t().contiguous();
  ours.gradients[1] = ours.gradients[1].to(at::kBFloat16).t().contiguous().t();
  ours.gradients[2] = ours.gradients[2].to(at::kDouble);
  AdamWTensors reference = ours;
  for (auto* list : testing::lists_of(reference)) {
    for (Tensor& tensor : *list) tensor = tensor.clone(at::MemoryFormat::Preserve);
  }
  adamw(ours, settings_on_gpu());
  adamw_reference(reference, settings_on_gpu());
  expect_same_tensors(ours, reference, "strides");
}

TEST_F(AdamWGpu, SkipsEverything) {
  const AdamWCase c{.device = kGpu, .gradients = kAllGradients, .copies = kAllCopies};
  const AdamWTensors ours = make_adamw_tensors(c);
  for (const Tensor& gradient : ours.gradients) gradient.fill_(NAN);
  const AdamWTensors before = cloned(ours);
  AdamWSettings settings = settings_on_gpu();
  settings.norm = grad_norm(ours.gradients);
  settings.max_norm = 1;
  settings.skip = settings.norm.isfinite().logical_not().to(at::kFloat);
  adamw(ours, settings);
  expect_same_tensors(ours, before, "skipped");
  settings.skip.zero_();
  settings.norm.fill_(1);
  for (const Tensor& gradient : ours.gradients) gradient.fill_(1);
  adamw(ours, settings);
  EXPECT_FALSE(ours.parameters.back().equal(before.parameters.back()));
  EXPECT_EQ(ours.steps[1].item<float>(), before.steps[1].item<float>() + 1);
}

TEST_F(AdamWGpu, WritesAreSeenByAutograd) {
  const AdamWTensors ours = make_adamw_tensors({.device = kGpu, .copies = {at::kBFloat16}});
  const auto version = ours.parameters[1]._version(), of_copy = ours.copies[1]._version();
  adamw(ours, settings_on_gpu());
  EXPECT_GT(ours.parameters[1]._version(), version);
  EXPECT_GT(ours.copies[1]._version(), of_copy);
}

TEST_F(AdamWGpu, LeavesTheRestToTheReference) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const AdamWCase c{
        .sizes = {1, 7, 8'193}, .device = kGpu, .parameter = dtype, .gradients = {dtype}};
    expect_reference_bits(c, settings_on_gpu(), c10::toString(dtype));
  }
  const AdamWCase c{.sizes = {1, 7, 8'193}, .device = kGpu, .amsgrad = true};
  expect_reference_bits(c, settings_on_gpu(true), "amsgrad");
}

// Norm, clipping and update in one graph, replayed with other gradients and rates; beside the same
// calls, both on a side stream.
TEST_F(AdamWGpu, InAGraphAndOnASideStream) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  AdamWCase c{.device = kGpu, .gradients = kAllGradients, .copies = kAllCopies};
  for (int64_t i = 0; i < 600; ++i) c.sizes.push_back(i);  // two tables
  const AdamWTensors called = make_adamw_tensors(c), replayed = cloned(called);
  AdamWSettings settings = settings_on_gpu();
  settings.skip = at::zeros({}, settings.learning_rate.options());
  settings.max_norm = 0.5;
  const auto step = [&](const AdamWTensors& tensors) {
    AdamWSettings clipped = settings;
    clipped.norm = grad_norm(tensors.gradients);
    adamw(tensors, clipped);
  };
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step(replayed);
  graph.capture_end();
  for (int i = 0; i < 4; ++i) {
    settings.learning_rate.fill_(0.01 * (i + 1));
    settings.skip.fill_(i == 2 ? 1 : 0);
    for (size_t t = 0; t < called.gradients.size(); ++t) {
      called.gradients[t].mul_(-0.7);
      replayed.gradients[t].copy_(called.gradients[t]);
    }
    step(called);
    graph.replay();
    expect_same_tensors(replayed, called, flashstep::str("replay ", i));
  }
  EXPECT_EQ(called.steps[0].item<float>(), 3);
}

}  // namespace
}  // namespace flashstep
