// Every strategy's mean against the sum without roundings, within the bound of docs/parallel.md.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using torch::Tensor;

const std::vector<std::vector<int64_t>> kShapes = {{37}, {5, 7}, {1}, {40, 30}, {513}};

// Numbers of very different size, so that sums in another order round differently.
Tensor gradient_of(int rank, int step, size_t parameter, torch::ScalarType dtype) {
  torch::manual_seed(1000 * rank + 10 * step + static_cast<int64_t>(parameter));
  const auto& shape = kShapes[parameter];
  return (torch::randn(shape) * torch::exp2(torch::randint(-8, 9, shape))).to(dtype);
}

// Half the distance from 1 to the next number.
double unit(torch::ScalarType dtype) { return std::exp2(dtype == torch::kFloat ? -24 : -8); }

// Adds up what ranks send, g_r / W rounded once, in float64: `exact` is the sum and `bound` W - 1
// roundings of it, each by at most u times the sum of what is added up (Jeannerod and Rump, 2013:
// for every order of the additions).
struct Sum {
  Tensor exact, bound;
};
Sum sum_of(const Group& group, int step, size_t parameter, torch::ScalarType dtype) {
  const double u = unit(dtype);
  Sum sum{torch::zeros(kShapes[parameter], torch::kDouble),
          torch::zeros(kShapes[parameter], torch::kDouble)};
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const Tensor sent = gradient_of(rank, step, parameter, dtype) * (1.0 / group.world_size());
    sum.exact += sent.to(torch::kDouble);
    sum.bound += sent.to(torch::kDouble).abs() * (u * (group.world_size() - 1));
  }
  return sum;
}

// The same of gradients with fewer bits than their float32 parameter: added up in float32, and
// rounded once to their own dtype.
Sum wide_sum_of(const Group& group, int step, size_t parameter, torch::ScalarType dtype) {
  Sum sum{torch::zeros(kShapes[parameter], torch::kDouble),
          torch::zeros(kShapes[parameter], torch::kDouble)};
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const Tensor share =
        gradient_of(rank, step, parameter, dtype).to(torch::kDouble) / group.world_size();
    sum.exact += share;
    // W - 1 additions and the product with 1 / W, which is rounded itself.
    sum.bound += share.abs() * (unit(torch::kFloat) * (group.world_size() + 1));
  }
  sum.bound += (sum.exact.abs() + sum.bound) * unit(dtype);
  return sum;
}

// The first step's means, and those of steps that are sent while backward runs: from new memory,
// and from where the step before has left them.
void for_each_mean(const Group& group, const ReducerOptions& options, torch::ScalarType dtype,
                   const std::function<void(const Tensor&, const Sum&)>& body,
                   bool float_parameters = false) {
  std::vector<Tensor> parameters;
  for (const auto& shape : kShapes) {
    parameters.push_back(
        torch::ones(shape, float_parameters ? torch::kFloat : dtype).requires_grad_());
  }
  announce(parameters, dtype);
  GradientReducer reducer(parameters, group, options);
  for (int step = 0; step < 3; ++step) {
    reducer.prepare_for_backward();
    std::vector<Tensor> roots;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (step == 2) {
        parameters[i].mutable_grad().zero_();
      } else {
        parameters[i].mutable_grad().reset();
      }
      roots.push_back((parameters[i] * gradient_of(group.rank(), step, i, dtype)).sum());
    }
    torch::stack(roots).sum().backward();
    reducer.finish_gradient_synchronization();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(parameters[i].grad().scalar_type(), dtype);
      body(parameters[i].grad(), (float_parameters ? wide_sum_of : sum_of)(group, step, i, dtype));
    }
  }
}

void expect_bound(const Group& group, const std::string& name, const ReducerOptions& options,
                  torch::ScalarType dtype, bool float_parameters) {
  SCOPED_TRACE(str(name, ", ", c10::toString(dtype), float_parameters ? " of float32" : "", ", ",
                   group.world_size(), " ranks"));
  int64_t rounded = 0;
  const auto expect_close = [&](const Tensor& mean, const Sum& sum) {
    EXPECT_TRUE(testing::close_within(mean, sum.exact, sum.bound));
    rounded += mean.to(torch::kDouble).ne(sum.exact).sum().item<int64_t>();
  };
  for_each_mean(group, options, dtype, expect_close, float_parameters);
  EXPECT_GT(rounded, 0) << "sums that are exact say nothing of a bound";
}

void expect_bounds(const Group& group, const std::string& name, const ReducerOptions& options) {
  expect_bound(group, name, options, torch::kFloat, /*float_parameters=*/false);
  expect_bound(group, name, options, torch::kBFloat16, /*float_parameters=*/false);
  if (options.strategy == Strategy::kTorch) return;
  expect_bound(group, name, options, torch::kBFloat16, /*float_parameters=*/true);
}

TEST(Ranks, MeansAreWithinTheirRoundings) {
  on_ranks({2, 3, 4}, [](const Group& group) {
    for (const std::string& name : strategy_names()) {
      expect_bounds(group, name, {.strategy = strategy_by_name(name)});
    }
    for (const bool flat : {false, true}) {
      expect_bounds(group, flat ? "small flat buckets" : "small buckets in place",
                    {.bucket_megabytes = 0.002, .flat_buckets = flat});
    }
  });
}

// What loses more than that is seen: numbers that travel in bfloat16.
TEST(Ranks, MoreRoundingsAreSeen) {
  on_ranks(3, [](const Group& group) {
    for_each_mean(group, {.communication_dtype = torch::kBFloat16}, torch::kFloat,
                  [](const Tensor& mean, const Sum& sum) {
                    EXPECT_FALSE(testing::close_within(mean, sum.exact, sum.bound));
                  });
  });
}

}  // namespace
}  // namespace flashstep
