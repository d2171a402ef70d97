// Gradients of another dtype than their parameter's (set_grad_dtype): every strategy and way to
// divide an optimizer against one process, and what is refused.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/distributed_data_parallel.h"
#include "flashstep/parallel/sharded_optimizer.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/parallel/uneven.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using comm::Group;
using testing::expect_sentence;
using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::kBFloat16;
using torch::Tensor;

constexpr int64_t kRows = 12;  // of all ranks
constexpr int kSteps = 4;
constexpr double kLearningRate = 0.1;

// Gradients of these modules are below 1. A step's is rounded on each rank, as a mean, and in the
// single process, by 2^-8 at most; twice that for what a step changes in the next.
constexpr double kTrainedBound = 2 * kSteps * kLearningRate * 3 / 256;

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
std::shared_ptr<M> make_module() {
  torch::manual_seed(21);
  auto module = std::make_shared<M>();
  announce(module->parameters(), kBFloat16);
  return module;
}

Tensor rows_of(const Group& group, const Tensor& all) {
  const int64_t own = all.size(0) / group.world_size();
  return all.slice(0, group.rank() * own, (group.rank() + 1) * own);
}

// Three of four steps in two halves, of which the first adds up.
template <typename M, typename Inner>
std::vector<Tensor> trained(const Group& group, const ReducerOptions& options,
                            std::optional<ShardMode> mode, bool divides_gradients = false) {
  DistributedDataParallel<M> net(make_module<M>(), group, options);
  const torch::optim::SGDOptions sgd(kLearningRate);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (mode) {
    ShardOptions shards{.mode = *mode, .bucket_megabytes = 0.001, .part_megabytes = 0.0005};
    if (divides_gradients) shards.reducer = &net.reducer();
    optimizer = std::make_unique<ShardedOptimizer<Inner>>(net.reducer().reduced_parameters(), sgd,
                                                          group, shards);
  } else {
    optimizer = std::make_unique<Inner>(net.reducer().reduced_parameters(), sgd);
  }
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(500 + step);
    const Tensor x = rows_of(group, torch::randn({kRows, 10})).contiguous();
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

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
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

std::vector<Case> cases() {
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
void expect_as_alone(const Group& group) {
  const auto alone = trained<M, torch::optim::SGD>(Group(comm::Environment()), {}, std::nullopt);
  std::vector<Tensor> first;
  for (const Case& c : cases()) {
    const auto expect = [&](const char* how, const std::vector<Tensor>& together) {
      SCOPED_TRACE(str(c.name, how));
      if (first.empty()) first = together;
      expect_same_on_all(group, together);
      expect_close(together, alone, kTrainedBound);
      // Halves are exact, a sum of two has one order, and it is rounded once.
      expect_close(together, first, group.world_size() == 2 ? 0 : kTrainedBound);
    };
    expect(", whole optimizer", trained<M, torch::optim::SGD>(group, c.options, std::nullopt));
    expect(", whole shards", trained<M, torch::optim::SGD>(group, c.options, ShardMode::kWhole));
    expect(", flat shards", trained<M, torch::optim::SGD>(group, c.options, ShardMode::kFlat));
    expect(", divided",
           trained<M, torch::optim::SGD>(group, c.options, ShardMode::kFlat, /*divides=*/true));
  }
}

TEST(GradientDtypeRanks, TrainsAsOneProcess) {
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](const comm::Environment& environment) {
      const Group group(environment);
      expect_as_alone<PlainToy>(group);
      expect_as_alone<TiedToy>(group);
    });
  }
}

TEST(GradientDtypeRanks, OptimizersInsideSeeWhatTheyTake) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      for (const bool divides : {false, mode == ShardMode::kFlat}) {
        seen_dtypes.clear();
        const auto widened = trained<PlainToy, SeeingSgd>(group, {}, mode, divides);
        EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{torch::kFloat});
        seen_dtypes.clear();
        const auto taken = trained<PlainToy, TakingSgd>(group, {}, mode, divides);
        EXPECT_EQ(seen_dtypes, std::set<torch::ScalarType>{kBFloat16});
        expect_close(taken, widened, 0);
      }
    }
  });
}

TEST(GradientDtypeRanks, BucketsCountTheBytesOfGradients) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    std::vector<Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::ones({250'000}).requires_grad_());
    ReducerOptions options;
    options.bucket_megabytes = 1;
    EXPECT_EQ(GradientReducer(parameters, group, options).buckets().size(), 4u);
    announce(parameters, kBFloat16);
    GradientReducer reducer(parameters, group, options);
    EXPECT_EQ(reducer.describe(), "bucketed, 2 buckets of up to 1 MB, by Gloo");
    // Where an operation writes its gradient, and where there is none.
    parallel::give_zero_gradients(reducer);
    EXPECT_EQ(parameters[0].grad().scalar_type(), kBFloat16);
    reducer.finish_gradient_synchronization();
    parameters[0].mutable_grad().reset();
    EXPECT_EQ(reducer.gradient_slot(parameters[0]).scalar_type(), kBFloat16);
  });
}

TEST(GradientDtypeRanks, AMissingGradientComesInItsDtype) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
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

// --- what is refused -------------------------------------------------------------------------

TEST(GradientDtypeRanks, TorchTakesNone) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    torch::manual_seed(100 + group.rank());
    const auto module = std::make_shared<PlainToy>();
    announce(module->parameters(), kBFloat16);
    const Tensor before = module->fc1->weight.detach().clone();
    ReducerOptions options;
    options.strategy = Strategy::kTorch;
    expect_sentence([&] { DistributedDataParallel<PlainToy>(module, group, options); },
                    {"strategy torch", "BFloat16", "fc1.weight", "choose another strategy"});
    EXPECT_TRUE(same_bits(module->fc1->weight.detach(), before)) << "nothing was sent";
    announce(module->parameters(), torch::kFloat);
    EXPECT_NO_THROW((DistributedDataParallel<PlainToy>(module, group, options)));
  });
}

TEST(GradientDtypeRanks, RanksThatDisagreeAreNamed) {
  testing::run_ranks(3, [](const comm::Environment& environment) {
    const Group group(environment);
    const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
    if (group.rank() == 2) announce(parameters, kBFloat16);
    expect_sentence([&] { GradientReducer(parameters, group, {}, {"a"}); },
                    {"a of shape [5]", "Float on cpu on rank 0",
                     "Float with gradients of BFloat16 on cpu on rank 2"});
  });
}

// Announced after the reducer was made, on all ranks or one: all hear of it, and of a step that is
// refused nothing is left.
void expect_late_is_refused(const Group& group, const ReducerOptions& options, bool on_all,
                            bool in_first_step) {
  const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_(),
                                          torch::ones({3}).requires_grad_()};
  GradientReducer reducer(parameters, group, options, {"a", "b"});
  const auto step = [&] {
    for (const Tensor& parameter : parameters) parameter.mutable_grad().reset();
    (parameters[0].sum() + 2 * parameters[1].sum()).backward();
    reducer.finish_gradient_synchronization();
  };
  if (!in_first_step) {
    step();
    step();
  }
  if (on_all || group.rank() == 1) announce({parameters[1]}, kBFloat16);
  const std::string words =
      options.debug ? "with gradients of BFloat16" : "gradients of Float for b";
  expect_sentence(
      step, {options.debug && on_all ? "BFloat16" : words, on_all ? "on rank 0" : "on rank 1"});
  announce({parameters[1]}, torch::kFloat);
  step();
  EXPECT_TRUE(same_bits(parameters[0].grad(), torch::full({5}, 1.0)));
  EXPECT_TRUE(same_bits(parameters[1].grad(), torch::full({3}, 2.0)));
}

TEST(GradientDtypeRanks, LateAnnouncementsAreRefusedOnAll) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      for (const bool on_all : {true, false}) {
        expect_late_is_refused(group, c.options, on_all, /*in_first_step=*/true);
        // With unused ones ranks tell each other nothing at a later step's end.
        if (!c.options.allow_unused)
          expect_late_is_refused(group, c.options, on_all, /*in_first_step=*/false);
      }
    }
    ReducerOptions options;
    options.debug = true;
    expect_late_is_refused(group, options, /*on_all=*/false, /*in_first_step=*/false);
  });
}

// Where they do not, the rank that it is true of stops, and the others' means are no numbers.
TEST(GradientDtypeRanks, WhatOneRankCannotSendIsNoMean) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
    ReducerOptions options;
    options.allow_unused = true;
    GradientReducer reducer(parameters, group, options, {"a"});
    const auto step = [&] {
      parameters[0].mutable_grad().reset();
      parameters[0].sum().backward();
      reducer.finish_gradient_synchronization();
    };
    step();
    if (group.rank() == 1) {
      announce(parameters, kBFloat16);
      expect_sentence(step, {"gradients of Float for a", "BFloat16 on rank 1"});
    } else {
      step();
      EXPECT_TRUE(parameters[0].grad().isnan().all().item<bool>());
    }
  });
}

// --- versions --------------------------------------------------------------------------------

// Who keeps a copy of a parameter in another dtype sees that it is old.
void expect_versions_to_grow(const Group& group, ShardMode mode, bool divides) {
  DistributedDataParallel<TiedToy> net(make_module<TiedToy>(), group);
  ShardOptions shards{.mode = mode, .part_megabytes = 0.0005};
  if (divides) shards.reducer = &net.reducer();
  const auto& parameters = net.reducer().reduced_parameters();
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(1), group,
                                                shards);
  for (int step = 0; step < 2; ++step) {
    std::vector<uint32_t> before;
    std::vector<Tensor> values;
    for (const Tensor& parameter : parameters) {
      before.push_back(parameter._version());
      values.push_back(parameter.detach().clone());
    }
    optimizer.zero_grad();
    net.forward(torch::ones({2, 10})).square().mean().backward();
    net.finish_gradient_synchronization();
    optimizer.step();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_GT(parameters[i]._version(), before[i]) << "parameter " << i << ", step " << step;
      EXPECT_FALSE(same_bits(parameters[i].detach(), values[i])) << i;
    }
  }
}

TEST(VersionRanks, GrowWithEveryUpdate) {
  const auto run = [](const Group& group) {
    expect_versions_to_grow(group, ShardMode::kWhole, /*divides=*/false);
    expect_versions_to_grow(group, ShardMode::kFlat, /*divides=*/false);
    expect_versions_to_grow(group, ShardMode::kFlat, /*divides=*/true);
  };
  run(Group(comm::Environment()));
  testing::run_ranks(3, [&](const comm::Environment& environment) { run(Group(environment)); });
}

TEST(VersionRanks, GrowWithWhatTheFirstRankSends) {
  testing::run_ranks(2, [](const comm::Environment& environment) {
    const Group group(environment);
    const Tensor parameter = torch::full({3}, 1.0 * group.rank()).requires_grad_();
    const Tensor other = torch::full({3}, 1.0 * group.rank());
    const auto before = parameter._version(), before_other = other._version();
    parallel::broadcast_from_first({parameter}, group);
    group.broadcast(other, 0);
    EXPECT_TRUE(same_bits(parameter.detach(), torch::zeros({3})));
    EXPECT_TRUE(same_bits(other, torch::zeros({3})));
    if (group.is_first()) return;
    EXPECT_GT(parameter._version(), before);
    EXPECT_GT(other._version(), before_other);
  });
}

}  // namespace
}  // namespace flashstep
