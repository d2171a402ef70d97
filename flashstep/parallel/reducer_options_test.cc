// What a reducer's options and its order do, and what ranks must agree on.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;

// Reads as parameters[i] * (i + 1) * scale for the chosen ones.
Tensor loss_of_used(const std::vector<Tensor>& parameters, const std::vector<size_t>& used,
                    double scale) {
  Tensor loss = torch::zeros({}).requires_grad_();
  for (const size_t i : used) loss = loss + (parameters[i] * (scale * (i + 1.0))).sum();
  return loss;
}

std::vector<Tensor> three_parameters() {
  return {torch::ones({4}).requires_grad_(), torch::ones({5}).requires_grad_(),
          torch::ones({6}).requires_grad_()};
}

void expect_unused_counts_as_zero(const Group& group, Strategy strategy, bool flat_buckets) {
  const auto parameters = three_parameters();
  GradientReducer reducer(parameters, group,
                          {.strategy = strategy,
                           .bucket_megabytes = 20e-6,
                           .allow_unused = true,
                           .flat_buckets = flat_buckets});
  // By step and rank (rank 1 and up): which parameters the loss depends on.
  const std::vector<std::vector<size_t>> first = {{0, 1}, {0, 1, 2}, {1}, {0, 1, 2}, {2}};
  const std::vector<std::vector<size_t>> others = {{1}, {0, 1, 2}, {1, 0}, {1, 2}, {2}};
  for (size_t step = 0; step < first.size(); ++step) {
    for (const Tensor& parameter : parameters) parameter.mutable_grad().reset();
    const auto& used = group.is_first() ? first[step] : others[step];
    loss_of_used(parameters, used, group.world_size()).backward();
    reducer.finish_gradient_synchronization();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool on_first = std::count(first[step].begin(), first[step].end(), i) > 0;
      const bool on_others = std::count(others[step].begin(), others[step].end(), i) > 0;
      ASSERT_EQ(parameters[i].grad().defined(), on_first || on_others) << step << ", " << i;
      if (!on_first && !on_others) continue;
      const double ranks = on_first + (on_others ? group.world_size() - 1 : 0);
      EXPECT_TRUE(testing::close(parameters[i].grad(),
                                 torch::full_like(parameters[i], ranks * (i + 1.0)), 1e-6))
          << step << ", " << i;
    }
  }
}

TEST(Ranks, UnusedParametersCountAsZero) {
  on_ranks({2, 3}, [](const Group& group) {
    for (const Strategy strategy : own_strategies()) {
      expect_unused_counts_as_zero(group, strategy, /*flat_buckets=*/true);
      expect_unused_counts_as_zero(group, strategy, /*flat_buckets=*/false);
    }
  });
}

// A stale configuration on one machine: else its ranks would launch other collectives.
TEST(Ranks, DifferentOptionsAreRefusedByName) {
  constexpr double kMegabytes = 25;
  const std::pair<ReducerOptions, const char*> cases[] = {
      {{.strategy = Strategy::kNaive, .bucket_megabytes = kMegabytes},
       "strategy bucketed on rank 0 and strategy naive on rank 2"},
      {{.bucket_megabytes = 2.5},
       "bucket_megabytes 25 on rank 0 and bucket_megabytes 2.5 on rank 2"},
      {{.bucket_megabytes = kMegabytes, .reorder = false},
       "reorder yes on rank 0 and reorder no on"},
      {{.bucket_megabytes = kMegabytes, .allow_unused = true}, "allow_unused no on rank 0 and"},
      {{.bucket_megabytes = kMegabytes, .flat_buckets = true},
       "flat_buckets not given on rank 0 and"},
      {{.bucket_megabytes = kMegabytes, .communication_dtype = torch::kBFloat16},
       "communication_dtype not given on rank 0 and communication_dtype BFloat16 on rank 2"},
      {{.bucket_megabytes = kMegabytes, .debug = true},
       "debug no on rank 0 and debug yes on rank 2"}};
  on_ranks(3, [&](const Group& group) {
    const std::vector<Tensor> parameters = {torch::zeros({3}).requires_grad_()};
    for (const auto& [others, sentence] : cases) {
      testing::expect_sentence(
          [&] {
            GradientReducer(
                parameters, group,
                group.rank() == 2 ? others : ReducerOptions{.bucket_megabytes = kMegabytes});
          },
          {sentence});
    }
  });
}

std::string join_numbers(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (const int64_t number : numbers) parts.push_back(std::to_string(number));
  return join(parts);
}

// From three ranks on the order of a bucket decides the last bits: a run that goes on with the
// saved order repeats the run that did not stop.
TEST(Ranks, TheOrderComesFromRankZeroAndIsKept) {
  on_ranks(3, [](const Group& group) {
    torch::manual_seed(100 + group.rank());
    std::vector<Tensor> parameters, factors;
    for (int i = 0; i < 8; ++i) {
      parameters.push_back(torch::zeros({37 + i}).requires_grad_());
      factors.push_back(torch::randn({37 + i}));
    }
    const ReducerOptions options{.bucket_megabytes = 400e-6};
    // On every rank gradients become ready in another order.
    const auto backward = [&](const std::vector<Tensor>& own, int step) {
      for (const Tensor& parameter : own) parameter.mutable_grad().reset();
      Tensor loss = torch::zeros({});
      for (int i = 0; i < 8; ++i) {
        const int which = (i * (3 + 2 * group.rank()) + 1) % 8;
        loss = (loss + (own[which] * factors[which]).sum()) * (1.0 + 0.1 * step);
      }
      loss.backward();
    };
    GradientReducer reducer(parameters, group, options);
    EXPECT_EQ(reducer.bucket_order(), (std::vector<int64_t>{7, 6, 5, 4, 3, 2, 1, 0}));
    for (int step = 0; step < 3; ++step) {
      backward(parameters, step);
      reducer.finish_gradient_synchronization();
    }
    const auto order = reducer.bucket_order();
    EXPECT_NE(order, (std::vector<int64_t>{7, 6, 5, 4, 3, 2, 1, 0}));
    for (const auto& text : group.all_gather(join_numbers(order)))
      EXPECT_EQ(text, join_numbers(order));
    EXPECT_GT(reducer.buckets().size(), 1u);

    std::vector<Tensor> resumed;
    for (const Tensor& parameter : parameters)
      resumed.push_back(parameter.detach().clone().requires_grad_());
    GradientReducer later(resumed, group, options);
    later.set_bucket_order(order);
    EXPECT_EQ(later.buckets(), reducer.buckets());
    backward(resumed, 2);
    later.finish_gradient_synchronization();
    for (size_t i = 0; i < resumed.size(); ++i) {
      EXPECT_TRUE(same_bits(resumed[i].grad(), parameters[i].grad())) << i;
    }
    EXPECT_THROW(later.set_bucket_order({0, 0, 1, 2, 3, 4, 5, 6}), UserError);
    EXPECT_THROW(later.set_bucket_order({0}), UserError);
  });
}

}  // namespace
}  // namespace flashstep
