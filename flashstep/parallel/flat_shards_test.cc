// Flat shards under DistributedDataParallel: gradients reduced once, to the rank that needs them.
#include "flashstep/parallel/flat_shards.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/divided_gradient.h"
#include "flashstep/parallel/state_pieces.h"
#include "flashstep/parallel/uneven.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;

constexpr int64_t kRows = 12;  // of all ranks, divisible by 2, 3 and 4
constexpr int kSteps = 5;

// The rows of step `step` that this rank reads, or all.
Tensor rows(int step, int rank, int world_size) {
  torch::manual_seed(500 + step);
  const int64_t own = kRows / world_size;
  return torch::randn({kRows, 10}).slice(0, rank * own, (rank + 1) * own);
}

template <typename M>
std::shared_ptr<M> make_module() {
  torch::manual_seed(21);
  return std::make_shared<M>();
}

// Tied ones once: torch's optimizers update a tensor as often as it is named.
std::vector<Tensor> distinct(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : parameters) {
    const auto same = [&](const Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(result.begin(), result.end(), same)) result.push_back(parameter);
  }
  return result;
}

template <typename M>
std::vector<Tensor> trained_alone(double max_norm) {
  const auto module = make_module<M>();
  const std::vector<Tensor> parameters = distinct(module->parameters());
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    module->forward(rows(step, 0, 1)).square().mean().backward();
    torch::nn::utils::clip_grad_norm_(parameters, max_norm);
    optimizer.step();
  }
  return module->parameters();
}

struct Training {
  ReducerOptions reducer;
  bool flat = true;
  double max_norm = 0.05;  // below the gradients' norm: every step is clipped
  int micro_steps = 1;

  template <typename M>
  std::vector<Tensor> parameters(const Group& group) const {
    DistributedDataParallel<M> net(make_module<M>(), group, reducer);
    ShardOptions shards;
    if (flat)
      shards = {.mode = ShardMode::kFlat, .reducer = &net.reducer(), .part_megabytes = 1e-4};
    ShardedOptimizer<torch::optim::AdamW> optimizer(
        net.parameters(), torch::optim::AdamWOptions(0.01), group, shards);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      train_step(net, optimizer, group, step);
    }
    std::vector<Tensor> result;
    for (const Tensor& parameter : net.parameters()) result.push_back(parameter.detach().clone());
    return result;
  }

  template <typename Net>
  void train_step(Net& net, ShardedOptimizerBase& optimizer, const Group& group, int step) const {
    const Tensor own = rows(step, group.rank(), group.world_size());
    for (int micro = 0; micro < micro_steps; ++micro) {
      std::optional<GradientReducer::NoSync> no_sync;
      if (micro + 1 < micro_steps) no_sync.emplace(net.no_sync());
      const int64_t count = own.size(0) / micro_steps;
      const Tensor part = own.slice(0, micro * count, (micro + 1) * count);
      (net.forward(part).square().mean() / micro_steps).backward();
    }
    net.finish_gradient_synchronization();
    Tensor norm = torch::zeros({});
    for (const Tensor& gradient : optimizer.gradients()) norm = norm + gradient.square().sum();
    norm = norm.sqrt();
    if (optimizer.gradients_are_divided()) norm = norm_over_ranks(norm, group);
    const Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
    for (const Tensor& gradient : optimizer.gradients()) gradient.mul_(factor);
    optimizer.step();
  }
};

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                  double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = (actual[i] - expected[i]).abs().max().template item<double>();
    EXPECT_TRUE(difference <= tolerance) << i << ": " << difference;
  }
}

template <typename M>
void expect_as_alone(const Group& group) {
  const auto alone = trained_alone<M>(0.05);
  for (const Strategy strategy : {Strategy::kBucketed, Strategy::kFlat, Strategy::kOverlapped,
                                  Strategy::kNaive, Strategy::kTorch}) {
    for (const double megabytes : {0.0001, 25.0}) {
      SCOPED_TRACE(str("strategy ", static_cast<int>(strategy), ", ", megabytes, " MB"));
      Training run;
      run.reducer.strategy = strategy;
      run.reducer.bucket_megabytes = megabytes;
      const auto together = run.parameters<M>(group);
      expect_close(run.parameters<M>(group), together, 0);  // repeated: bit for bit
      // Adam's first updates are of the size of the learning rate, 0.01, whatever the gradient's:
      // rounding of small gradients may cost 1 % of one.
      expect_close(together, alone, 1e-4);
      for (const Tensor& parameter : together) {
        const auto sums = group.all_gather(parameter.sum().template item<double>());
        EXPECT_EQ(sums.front(), sums.back());
      }
    }
  }
  Training in_place;
  in_place.reducer.flat_buckets = false;
  for (const double megabytes : {0.0001, 25.0}) {
    in_place.reducer.bucket_megabytes = megabytes;
    const auto together = in_place.parameters<M>(group);
    expect_close(in_place.parameters<M>(group), together, 0);
    expect_close(together, alone, 1e-4);
  }
  Training accumulated;
  accumulated.micro_steps = group.world_size() == 4 ? 3 : 2;
  expect_close(accumulated.parameters<M>(group), alone, 1e-4);
}

TEST(Ranks, TrainsAsOneProcess) {
  for (const int world_size : {2, 3, 4}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      expect_as_alone<testing::PlainToy>(group);
      expect_as_alone<testing::TiedToy>(group);
    });
  }
}

// Between two ranks every sum has one order: divided or whole, gradients and updates are the same.
TEST(Ranks, TwoRanksAgreeWithWholeParametersBitForBit) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    Training run;
    run.max_norm = 1e9;  // the norm itself is summed in another order
    const auto flat = run.parameters<testing::TiedToy>(group);
    run.reducer.flat_buckets = false;
    expect_close(run.parameters<testing::TiedToy>(group), flat, 0);
    run.reducer.communication_dtype = torch::kBFloat16;
    const auto rounded = run.parameters<testing::TiedToy>(group);
    run.flat = false;  // the all-reduce of those that are not divided rounds its sums, too
    expect_close(run.parameters<testing::TiedToy>(group), rounded, 0);
    run.reducer.communication_dtype.reset();
    run.reducer.flat_buckets.reset();
    expect_close(run.parameters<testing::TiedToy>(group), flat, 0);
  });
}

// Uses `extra` in some steps, or on some ranks, only.
struct Sometimes : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({7, 10}) / 3);
  Tensor extra = register_parameter("extra", torch::ones({7, 5}, torch::kDouble));
  Tensor half = register_parameter("half", torch::ones({3}, torch::kBFloat16));
  Tensor forward(const Tensor& x, bool use_extra) {
    Tensor sum = at::linear(x, weight).square().mean() + half.to(torch::kFloat).square().sum();
    return use_extra ? sum + extra.square().mean().to(torch::kFloat) : sum;
  }
};

void expect_unused_and_mixed(const Group& group, std::optional<bool> flat_buckets) {
  ReducerOptions options;
  options.allow_unused = true;
  options.flat_buckets = flat_buckets;
  DistributedDataParallel<Sometimes> net(std::make_shared<Sometimes>(), group, options);
  ShardedOptimizer<torch::optim::SGD> optimizer(
      net.parameters(), torch::optim::SGDOptions(0.1), group,
      {.mode = ShardMode::kFlat, .reducer = &net.reducer()});
  const auto step = [&](bool use_extra, bool some_rank_does) {
    optimizer.zero_grad();
    net.forward(torch::ones({2, 10}), use_extra).backward();
    net.finish_gradient_synchronization();
    EXPECT_TRUE(is_divided_gradient(net.module()->weight.grad()));
    EXPECT_EQ(net.module()->extra.grad().defined(), some_rank_does);
    optimizer.step();
  };
  const Tensor before = net.module()->extra.detach().clone();
  step(false, false);
  EXPECT_TRUE(same_bits(net.module()->extra.detach(), before));  // no gradient anywhere
  step(group.rank() == 1, true);
  // d/dx mean(x^2) = 2 x / 35 at 1 on one of three ranks.
  const Tensor expected = before - 0.1 * 2.0 / 35 / 3;
  EXPECT_TRUE((net.module()->extra - expected).abs().max().item<double>() <= 1e-15);
  EXPECT_EQ(net.module()->half.scalar_type(), torch::kBFloat16);
  EXPECT_LT(net.module()->half[0].item<float>(), 1);
}

TEST(Ranks, UnusedParametersAndMixedTypes) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    expect_unused_and_mixed(group, std::nullopt);
    expect_unused_and_mixed(group, /*flat_buckets=*/false);
  });
}

// Nothing would be clipped, in silence.
TEST(Ranks, FunctionsThatReadDividedGradientsAreRefused) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(), group);
    ShardedOptimizer<torch::optim::SGD> optimizer(net, torch::optim::SGDOptions(0.1),
                                                  {.mode = ShardMode::kFlat});
    const std::vector<Tensor> parameters = net.parameters();
    const auto backward = [&] { net(torch::ones({2, 10})).square().sum().backward(); };
    const auto expect_refused = [](const std::function<void()>& call) {
      testing::expect_sentence(call, {"clip_grad_norm", "reads a parameter's .grad"});
    };
    backward();
    expect_refused([&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0); });
    expect_refused([&] { torch::nn::utils::clip_grad_value_(parameters, 1.0); });
    expect_refused([&] { parameters[0].grad().norm(); });
    expect_refused([&] { parameters[0].grad().sizes(); });
    expect_refused([&] { parameters[0].grad().clone(); });
    expect_refused([&] { parameters[0].grad().mul_(2); });
    expect_refused([&] { grad_norm({parameters[0].grad()}); });
    expect_refused([&] { torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1)).step(); });
    EXPECT_GT(optimizer.clip_grad_norm(1.0).item<float>(), 0);
    optimizer.step();
    for (const Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
    backward();  // as any
    optimizer.zero_grad(/*set_to_none=*/false);
    for (const Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
    backward();
    {
      const auto guard = net.no_sync();
      expect_refused([&] { backward(); });
    }
    optimizer.step();
  });
}

TEST(Ranks, ReducerOfMoreThanTheOptimizerIsRefused) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(), group);
    EXPECT_THROW((ShardedOptimizer<torch::optim::SGD>(
                     std::vector<Tensor>{net.module()->fc1}, torch::optim::SGDOptions(0.1), group,
                     {.mode = ShardMode::kFlat, .reducer = &net.reducer()})),
                 UserError);
  });
}

// Without its optimizer the reducer averages for everybody again.
TEST(Ranks, ReducerAveragesAgainAfterTheOptimizer) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(), group);
    {
      ShardedOptimizer<torch::optim::SGD> optimizer(
          net.parameters(), torch::optim::SGDOptions(0.1), group,
          {.mode = ShardMode::kFlat, .reducer = &net.reducer()});
    }
    net.forward(rows(0, group.rank(), 2)).square().mean().backward();
    net.finish_gradient_synchronization();
    for (const Tensor& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

// Batches of 4, 2 and 0 rows, then of 0, 0 and 3, then the end, on all ranks at once.
TEST(Ranks, UnevenBatches) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const int64_t sizes[3][3] = {{4, 2, 0}, {0, 0, 3}, {0, 0, 0}};
    for (const bool flat : {false, true}) {
      DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(), group);
      ShardOptions shards;
      if (flat) shards = {.mode = ShardMode::kFlat, .reducer = &net.reducer()};
      ShardedOptimizer<torch::optim::SGD> optimizer(net.parameters(), torch::optim::SGDOptions(0.1),
                                                    group, shards);
      const auto alone = make_module<testing::TiedToy>();
      torch::optim::SGD reference(distinct(alone->parameters()), torch::optim::SGDOptions(0.1));
      int steps = 0;
      for (;; ++steps) {
        const int64_t* own = sizes[steps];
        const auto share = share_of_batch(own[group.rank()], group);
        if (share.rows == 0) break;
        const Tensor all = rows(steps, 0, 1).slice(0, 0, own[0] + own[1] + own[2]);
        reference.zero_grad();
        alone->forward(all).square().mean().backward();
        reference.step();
        int64_t begin = 0;
        for (int rank = 0; rank < group.rank(); ++rank) begin += own[rank];
        optimizer.zero_grad();
        if (own[group.rank()] > 0) {
          const Tensor x = all.slice(0, begin, begin + own[group.rank()]);
          (net.forward(x).square().mean() * share.weight).backward();
        } else {
          give_zero_gradients(net.reducer());
        }
        net.finish_gradient_synchronization();
        optimizer.step();
      }
      EXPECT_EQ(steps, 2);
      expect_close(net.parameters(), alone->parameters(), 1e-5);
    }
  });
}

// A rank that goes on while another has left hears of it at once, by name, and not by timeout.
TEST(Ranks, MoreBatchesThanAnotherRankIsRefusedByName) {
  testing::run_ranks(2, [](const Environment& environment) {
    auto group = std::make_unique<Group>(environment);
    auto net = std::make_unique<DistributedDataParallel<testing::TiedToy>>(
        make_module<testing::TiedToy>(), *group);
    const auto step = [&](int number) {
      net->forward(rows(number, group->rank(), 2)).square().mean().backward();
      net->finish_gradient_synchronization();
    };
    step(0);
    if (group->rank() == 1) {
      net.reset();
      group.reset();
      return;
    }
    try {
      step(1);
      ADD_FAILURE() << "expected the loss of rank 1";
    } catch (const MachineError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
    }
  });
}

TEST(Pieces, JoinWhatWasCutAndNothingElse) {
  const Tensor plain = torch::arange(12.0).view({3, 4}),
               turned = torch::arange(6.0).view({2, 3}).t();
  const NamedTensors parameters = {{"plain", plain}, {"turned", turned}};
  const NamedTensors whole = {
      {"plain/m", plain * 2}, {"plain/step", torch::full({}, 3.0)}, {"turned/m", turned * 5}};
  NamedTensors pieces = cut_pieces(
      whole, {{"plain", plain, 0, 5}, {"plain", plain, 5, 12}, {"turned", turned, 0, 6}});
  EXPECT_EQ(pieces[0].first, "plain@0:5/m");
  EXPECT_EQ(pieces[4].first, "turned@0:6@1,3/m");
  const auto joined = join_pieces(pieces, parameters);
  ASSERT_EQ(joined.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(joined[i].first, whole[i].first);
    EXPECT_TRUE(same_bits(joined[i].second.contiguous(), whole[i].second.contiguous())) << i;
  }
  EXPECT_THROW(join_pieces(pieces, {{"plain", plain}}), UserError);
  EXPECT_THROW(join_pieces(pieces, {{"plain", plain}, {"turned", turned.contiguous()}}), UserError);
  auto twice = pieces;
  twice.push_back(pieces.front());
  EXPECT_THROW(join_pieces(twice, parameters), UserError);
  pieces.erase(pieces.begin());  // a missing piece
  EXPECT_THROW(join_pieces(pieces, parameters), UserError);
}

TEST(PlanFlat, PartsAreEqualAndAligned) {
  std::vector<Tensor> parameters;
  for (const int64_t size : {5, 100, 33, 1}) parameters.push_back(torch::zeros({size}));
  for (const int world_size : {1, 2, 3, 7}) {
    const auto layouts =
        plan_flat(parameters, gradient_dtypes(parameters), {3, 2, 1, 0}, 300, world_size);
    size_t count = 0;
    for (const BucketLayout& layout : layouts) {
      EXPECT_EQ(layout.numel % (world_size * kPartAlignmentBytes / 4), 0);
      for (const int64_t offset : layout.offsets) {
        EXPECT_EQ(offset % (kPartAlignmentBytes / 4), 0);
      }
      count += layout.parameters.size();
    }
    EXPECT_EQ(count, parameters.size());
  }
}

}  // namespace
}  // namespace flashstep
