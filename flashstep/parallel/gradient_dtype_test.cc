// Gradients of another dtype than their parameter's (set_grad_dtype): every strategy and way to
// divide an optimizer against one process.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/parallel/uneven.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::kBFloat16;
using torch::Tensor;

constexpr int64_t kNarrowRows = 12;  // of all ranks
constexpr int kNarrowSteps = 4;
constexpr double kNarrowRate = 0.1;

// Gradients of these modules are below 1. A step's is rounded on each rank, as a mean, and in the
// single process, by 2^-8 at most; twice that for what a step changes in the next.
constexpr double kNarrowBound = 2 * kNarrowSteps * kNarrowRate * 3 / 256;

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

template <typename M>
std::shared_ptr<M> make_narrow() {
  torch::manual_seed(21);
  auto module = std::make_shared<M>();
  announce(module->parameters(), kBFloat16);
  return module;
}

Tensor own_rows(const Group& group, const Tensor& all) {
  const int64_t own = all.size(0) / group.world_size();
  return all.slice(0, group.rank() * own, (group.rank() + 1) * own);
}

// Three of four steps in two halves, of which the first adds up.
template <typename M, typename Inner>
std::vector<Tensor> train_narrow(const Group& group, const ReducerOptions& options,
                                 std::optional<ShardMode> mode, bool divides_gradients = false) {
  DistributedDataParallel<M> net(make_narrow<M>(), group, options);
  const torch::optim::SGDOptions sgd(kNarrowRate);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (mode) {
    ShardOptions shards{.mode = *mode, .bucket_megabytes = 0.001, .part_megabytes = 0.0005};
    if (divides_gradients) shards.reducer = &net.reducer();
    optimizer = std::make_unique<ShardedOptimizer<Inner>>(net.reducer().reduced_parameters(), sgd,
                                                          group, shards);
  } else {
    optimizer = std::make_unique<Inner>(net.reducer().reduced_parameters(), sgd);
  }
  for (int step = 0; step < kNarrowSteps; ++step) {
    torch::manual_seed(500 + step);
    const Tensor x = own_rows(group, torch::randn({kNarrowRows, 10})).contiguous();
    optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
    const auto halves = x.chunk(step == 0 ? 1 : 2);
    for (size_t half = 0; half < halves.size(); ++half) {
      std::optional<GradientReducer::NoSync> no_sync;
      if (half + 1 < halves.size()) no_sync.emplace(net.no_sync());
      (net.forward(halves[half]).square().mean() / static_cast<double>(halves.size())).backward();
    }
    net.finish_gradient_synchronization();
    optimizer->step();
  }
  std::vector<Tensor> result;
  for (const Tensor& parameter : net.parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
    if (parameter.requires_grad() && parameter.grad().defined()) {
      EXPECT_EQ(parameter.grad().scalar_type(), kBFloat16);
    }
    result.push_back(parameter.detach().clone());
  }
  return result;
}

void expect_near(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(testing::close(actual[i], expected[i], tolerance)) << i;
}

void expect_same_on_all(const Group& group, const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    const Tensor first = tensor.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(same_bits(tensor, first)) << "ranks differ";
  }
}

std::vector<Case> narrow_cases() {
  std::vector<Case> all = without_torch(common_cases());
  for (const bool unused : {false, true}) {
    add_case(all, str("buckets in place", unused ? ", unused allowed" : ""),
             [&](ReducerOptions& o) {
               o.flat_buckets = false;
               o.bucket_megabytes = 0.0008;
               o.allow_unused = unused;
             });
  }
  return all;
}

template <typename M>
void expect_narrow_as_alone(const Group& group) {
  const auto alone = train_narrow<M, torch::optim::SGD>(Group(Environment()), {}, std::nullopt);
  expect_near(train_narrow<M, torch::optim::SGD>(Group(Environment()), {}, ShardMode::kFlat, true),
              alone, 0);
  std::vector<Tensor> first;
  for (const Case& c : narrow_cases()) {
    const auto expect = [&](const char* how, const std::vector<Tensor>& together) {
      SCOPED_TRACE(str(c.name, how));
      if (first.empty()) first = together;
      expect_same_on_all(group, together);
      expect_near(together, alone, kNarrowBound);
      // Halves are exact, a sum of two has one order, and it is rounded once.
      expect_near(together, first, group.world_size() == 2 ? 0 : kNarrowBound);
    };
    expect(", whole optimizer", train_narrow<M, torch::optim::SGD>(group, c.options, std::nullopt));
    expect(", whole shards",
           train_narrow<M, torch::optim::SGD>(group, c.options, ShardMode::kWhole));
    expect(", flat shards", train_narrow<M, torch::optim::SGD>(group, c.options, ShardMode::kFlat));
    expect(", divided", train_narrow<M, torch::optim::SGD>(group, c.options, ShardMode::kFlat,
                                                           /*divides=*/true));
  }
}

TEST(GradientDtypeRanks, TrainsAsOneProcess) {
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      expect_narrow_as_alone<PlainToy>(group);
      expect_narrow_as_alone<TiedToy>(group);
    });
  }
}

TEST(GradientDtypeRanks, OptimizersInsideSeeWhatTheyTake) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      for (const bool divides : {false, mode == ShardMode::kFlat}) {
        seen_dtypes.clear();
        const auto widened = train_narrow<PlainToy, SeeingSgd>(group, {}, mode, divides);
        EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{torch::kFloat});
        seen_dtypes.clear();
        const auto taken = train_narrow<PlainToy, TakingSgd>(group, {}, mode, divides);
        EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{kBFloat16});
        expect_near(taken, widened, 0);
      }
    }
  });
}

TEST(GradientDtypeRanks, BucketsCountTheBytesOfGradients) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    std::vector<Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::ones({250'000}).requires_grad_());
    ReducerOptions options;
    options.bucket_megabytes = 1;
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
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const bool flat : {true, false}) {
      const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
      announce(parameters, kBFloat16);
      ReducerOptions options;
      options.allow_unused = true;
      options.flat_buckets = flat;
      GradientReducer reducer(parameters, group, options);
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
