// Gradients averaged by every strategy, on 2, 3 and 4 ranks.
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::TiedToy;
using torch::Tensor;

std::vector<Case> all_cases() {
  std::vector<Case> cases = common_cases();
  cases.push_back(
      {"torch, buckets of 0.0016 MB", {.strategy = Strategy::kTorch, .bucket_megabytes = 0.0016}});
  cases.push_back({"buckets in place", {.bucket_megabytes = 0.0016, .flat_buckets = false}});
  cases.push_back(
      {"buckets in place, unused allowed", {.allow_unused = true, .flat_buckets = false}});
  cases.push_back({"not reordered, debug", {.reorder = false, .debug = true}});
  return cases;
}

TEST(Ranks, AllStrategiesTrainLikeOneProcess) {
  on_ranks({2, 3, 4}, [](const Group& group) {
    expect_single_process_training<PlainToy>(group, at::kCPU, all_cases());
    expect_single_process_training<TiedToy>(group, at::kCPU, all_cases());
  });
}

TEST(Ranks, OneProcessNeedsNoOthers) {
  const Group group{Environment()};
  expect_same_bits(train_together<PlainToy>(group, at::kCPU, {}, sgd_of({})),
                   train_alone<PlainToy>(at::kCPU, {}, sgd_of({})));
}

TEST(Ranks, NoSyncAddsUp) {
  on_ranks(2,
           [](const Group& group) { expect_accumulation<PlainToy>(group, at::kCPU, all_cases()); });
}

// Gradients that are whole numbers: means of 2 and 4 ranks are exact whatever the order.
// `announced`: the gradients' dtype.
void expect_exact_means(const Group& group, const ReducerOptions& options,
                        const std::vector<torch::ScalarType>& dtypes,
                        std::optional<torch::ScalarType> announced = std::nullopt) {
  std::vector<Tensor> parameters, factors;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const std::vector<int64_t> shape = i % 2 ? std::vector<int64_t>{7, 3} : std::vector<int64_t>{};
    const Tensor value = torch::ones(shape, dtypes[i]);
    parameters.push_back((i % 4 == 1 ? value.t() : value).detach().requires_grad_());
    factors.push_back(
        torch::full(parameters.back().sizes(), static_cast<double>(i + 1), dtypes[i]));
  }
  if (announced) announce(parameters, *announced);
  GradientReducer reducer(parameters, group, options);
  for (int step = 0; step < 3; ++step) {
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
    reducer.prepare_for_backward();
    Tensor loss = torch::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i) {
      loss = loss + (parameters[i] * factors[i] * static_cast<double>(group.rank() + step))
                        .sum()
                        .to(torch::kFloat);
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    const double mean = (group.world_size() - 1) / 2.0 + step;
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(testing::close(parameters[i].grad(), factors[i].to(torch::kDouble) * mean, 0))
          << i;
      EXPECT_EQ(parameters[i].grad().scalar_type(), announced.value_or(dtypes[i]));
    }
  }
}

TEST(Ranks, MixedDtypesAndStrides) {
  on_ranks({2, 4}, [](const Group& group) {
    const auto f = torch::kFloat, d = torch::kDouble, b = torch::kBFloat16;
    for (const Case& c : all_cases()) {
      SCOPED_TRACE(c.name);
      expect_exact_means(group, c.options, {f, f, f, f, f, f});
      expect_exact_means(group, c.options, {f, f, d, d, b, b, f, d, b});
    }
    for (const Case& c : without_torch(all_cases())) {
      for (const auto announced : {torch::kBFloat16, torch::kHalf, torch::kDouble}) {
        SCOPED_TRACE(str(c.name, ", gradients of ", c10::toString(announced)));
        expect_exact_means(group, c.options, {f, f, d, f, b, f, f}, announced);
      }
    }
    for (const Strategy strategy : {Strategy::kNaive, Strategy::kFlat, Strategy::kBucketed}) {
      // Whole numbers below 256 are exact in bfloat16, too.
      ReducerOptions options{.strategy = strategy, .communication_dtype = b};
      expect_exact_means(group, options, {f, f, f});
      options.flat_buckets = false;
      expect_exact_means(group, options, {f, f, f});
      expect_exact_means(group, options, {f, f}, b);
      expect_exact_means(group, options, {f, f}, torch::kHalf);
    }
  });
}

}  // namespace
}  // namespace flashstep
