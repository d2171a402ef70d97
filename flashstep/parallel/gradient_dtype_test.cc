// Gradients of another dtype than their parameter's (set_grad_dtype): every strategy and way to
// divide an optimizer against one process.
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::kBFloat16;
using torch::Tensor;

// Which dtypes of gradients the optimizer inside a divided one has seen.
std::set<torch::ScalarType> seen_dtypes;

struct SeeingSgd : torch::optim::SGD {
  using SGD::SGD;
  static constexpr bool kUpdatesEachElementAlone = true;
  Tensor step(LossClosure closure = nullptr) override {
    for (const auto& group : param_groups()) {
      for (const Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) seen_dtypes.insert(parameter.grad().scalar_type());
      }
    }
    return SGD::step(std::move(closure));
  }
};
struct TakingSgd : SeeingSgd {
  using SeeingSgd::SeeingSgd;
  static constexpr bool kTakesGradientsOfAnyDtype = true;
};

// Every way to divide an optimizer.
std::vector<Case> narrow_cases(const Case& of, int micro_steps) {
  std::vector<Case> cases;
  const auto add = [&](const char* how, std::optional<ShardMode> mode, bool divides = false) {
    Case c{of.name + how, of.options, kBFloat16};
    if (mode) c.shards = {.mode = *mode, .bucket_megabytes = 0.001, .part_megabytes = 0.0005};
    c.divides_gradients = divides;
    c.micro_steps = micro_steps;
    cases.push_back(c);
  };
  add(", whole optimizer", std::nullopt);
  add(", whole shards", ShardMode::kWhole);
  add(", flat shards", ShardMode::kFlat);
  add(", divided", ShardMode::kFlat, /*divides=*/true);
  return cases;
}

template <typename M>
void expect_narrow_as_alone(const Group& group) {
  std::vector<Case> options = without_torch(common_cases()), cases;
  for (const bool unused : {false, true}) {
    options.push_back(
        {str("buckets in place", unused ? ", unused allowed" : ""),
         {.bucket_megabytes = 0.0008, .allow_unused = unused, .flat_buckets = false}});
  }
  for (const Case& c : options) {
    for (const Case& narrow : narrow_cases(c, /*micro_steps=*/2)) cases.push_back(narrow);
  }
  expect_single_process_training<M>(group, at::kCPU, cases);
  expect_single_process_training<M>(group, at::kCPU, narrow_cases({}, /*micro_steps=*/1));
}

TEST(GradientDtypeRanks, TrainsAsOneProcess) {
  expect_narrow_as_alone<PlainToy>(Group(Environment()));
  on_ranks({2, 3}, [](const Group& group) {
    expect_narrow_as_alone<PlainToy>(group);
    expect_narrow_as_alone<TiedToy>(group);
  });
}

TEST(GradientDtypeRanks, OptimizersInsideSeeWhatTheyTake) {
  on_ranks(2, [](const Group& group) {
    for (const Case& c : narrow_cases({}, /*micro_steps=*/2)) {
      if (!c.shards) continue;
      SCOPED_TRACE(c.name);
      seen_dtypes.clear();
      const auto widened = train_together<PlainToy, SeeingSgd>(group, at::kCPU, c, sgd_of(c));
      EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{torch::kFloat});
      seen_dtypes.clear();
      const auto taken = train_together<PlainToy, TakingSgd>(group, at::kCPU, c, sgd_of(c));
      EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{kBFloat16});
      expect_near(taken, widened, 0);
    }
  });
}

TEST(GradientDtypeRanks, BucketsCountTheBytesOfGradients) {
  on_ranks(2, [](const Group& group) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::ones({250'000}).requires_grad_());
    const ReducerOptions options{.bucket_megabytes = 1};
    EXPECT_EQ(GradientReducer(parameters, group, options).buckets().size(), 4u);
    announce(parameters, kBFloat16);
    GradientReducer reducer(parameters, group, options);
    EXPECT_EQ(reducer.describe(), "bucketed, 2 buckets of up to 1 MB, by Gloo");
    // And where there is none.
    give_zero_gradients(reducer);
    EXPECT_EQ(parameters[0].grad().scalar_type(), kBFloat16);
    reducer.finish_gradient_synchronization();
  });
}

TEST(GradientDtypeRanks, AMissingGradientComesInItsDtype) {
  on_ranks(2, [](const Group& group) {
    for (const bool flat : {true, false}) {
      const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
      announce(parameters, kBFloat16);
      GradientReducer reducer(parameters, group, {.allow_unused = true, .flat_buckets = flat});
      for (int step = 0; step < 2; ++step) {
        parameters[0].mutable_grad().reset();
        if (group.rank() == step) (parameters[0] * 6).sum().backward();
        reducer.finish_gradient_synchronization();
        EXPECT_TRUE(same_bits(parameters[0].grad(), torch::full({5}, 3.0, kBFloat16)));
      }
    }
  });
}

}  // namespace
}  // namespace flashstep
