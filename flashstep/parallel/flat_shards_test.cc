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
#include "flashstep/parallel/test_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;

// An optimizer whose gradients come divided; clipped in every step, for the norm is above that.
Case flat_case(const std::string& name, const ReducerOptions& options) {
  return {.name = name,
          .options = options,
          .shards = ShardOptions{.mode = ShardMode::kFlat, .part_megabytes = 1e-4},
          .divides_gradients = true,
          .max_norm = 0.05};
}

template <typename M>
std::vector<Tensor> train_by_adam(const Group& group, const Case& c) {
  return train_together<M, torch::optim::AdamW>(group, at::kCPU, c,
                                                torch::optim::AdamWOptions(0.01));
}

template <typename M>
void expect_as_alone(const Group& group) {
  std::vector<Case> cases;
  for (const double megabytes : {0.0001, 25.0}) {
    for (const std::string& name : strategy_names()) {
      cases.push_back(
          flat_case(str(name, ", ", megabytes, " MB"),
                    {.strategy = strategy_by_name(name), .bucket_megabytes = megabytes}));
    }
    cases.push_back(flat_case(str("in place, ", megabytes, " MB"),
                              {.bucket_megabytes = megabytes, .flat_buckets = false}));
  }
  cases.push_back(flat_case("accumulated", {}));
  cases.back().micro_steps = group.world_size() == 4 ? 3 : 2;
  const auto alone = train_alone<M, torch::optim::AdamW>(at::kCPU, cases.front(),
                                                         torch::optim::AdamWOptions(0.01));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto together = train_by_adam<M>(group, c);
    expect_same_bits(train_by_adam<M>(group, c), together);
    expect_same_on_all(group, together);
    // Adam's first updates are of the size of the learning rate, 0.01, whatever the gradient's:
    // rounding of small gradients may cost 1 % of one.
    expect_near(together, alone, 1e-4);
  }
}

TEST(Ranks, TrainsAsOneProcess) {
  on_ranks({2, 3, 4}, [](const Group& group) {
    expect_as_alone<testing::PlainToy>(group);
    expect_as_alone<testing::TiedToy>(group);
  });
}

// Between two ranks every sum has one order: divided or whole, gradients and updates are the same.
TEST(Ranks, TwoRanksAgreeWithWholeParametersBitForBit) {
  on_ranks(2, [](const Group& group) {
    const auto train = [&](bool flat, const ReducerOptions& options) {
      Case c = flat_case("", options);
      c.max_norm = 0;  // the norm is summed in another order
      if (!flat) c.shards = ShardOptions();
      c.divides_gradients = flat;
      return train_by_adam<testing::TiedToy>(group, c);
    };
    const auto flat = train(true, {});
    expect_same_bits(train(true, {.flat_buckets = false}), flat);
    expect_same_bits(train(false, {}), flat);
    // The all-reduce of those that are not divided rounds its sums, too.
    const ReducerOptions rounds{.flat_buckets = false, .communication_dtype = torch::kBFloat16};
    expect_same_bits(train(false, rounds), train(true, rounds));
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
  DistributedDataParallel<Sometimes> net(std::make_shared<Sometimes>(), group,
                                         {.allow_unused = true, .flat_buckets = flat_buckets});
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
  on_ranks(3, [](const Group& group) {
    expect_unused_and_mixed(group, std::nullopt);
    expect_unused_and_mixed(group, /*flat_buckets=*/false);
  });
}

// Nothing would be clipped, in silence.
TEST(Ranks, FunctionsThatReadDividedGradientsAreRefused) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(21), group);
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
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(21), group);
    EXPECT_THROW((ShardedOptimizer<torch::optim::SGD>(
                     std::vector<Tensor>{net.module()->fc1}, torch::optim::SGDOptions(0.1), group,
                     {.mode = ShardMode::kFlat, .reducer = &net.reducer()})),
                 UserError);
  });
}

// Without its optimizer the reducer averages for everybody again.
TEST(Ranks, ReducerAveragesAgainAfterTheOptimizer) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(21), group);
    {
      ShardedOptimizer<torch::optim::SGD> optimizer(
          net.parameters(), torch::optim::SGDOptions(0.1), group,
          {.mode = ShardMode::kFlat, .reducer = &net.reducer()});
    }
    backward_of_own_rows(net, group, Rows(0, at::kCPU), /*micro_steps=*/1);
    for (const Tensor& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

// Batches of 4, 2 and 0 rows, then of 0, 0 and 3, then the end, on all ranks at once.
TEST(Ranks, UnevenBatches) {
  on_ranks(3, [](const Group& group) {
    const int64_t sizes[3][3] = {{4, 2, 0}, {0, 0, 3}, {0, 0, 0}};
    for (const bool flat : {false, true}) {
      DistributedDataParallel<testing::TiedToy> net(make_module<testing::TiedToy>(21), group);
      ShardOptions shards;
      if (flat) shards = {.mode = ShardMode::kFlat, .reducer = &net.reducer()};
      ShardedOptimizer<torch::optim::SGD> optimizer(net.parameters(), torch::optim::SGDOptions(0.1),
                                                    group, shards);
      const auto alone = make_module<testing::TiedToy>(21);
      torch::optim::SGD reference(distinct(alone->parameters()), torch::optim::SGDOptions(0.1));
      int steps = 0;
      for (;; ++steps) {
        const int64_t* own = sizes[steps];
        const auto share = share_of_batch(own[group.rank()], group);
        if (share.rows == 0) break;
        const Tensor all = Rows(steps, at::kCPU).x.slice(0, 0, own[0] + own[1] + own[2]);
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
      expect_near(net.parameters(), alone->parameters(), 1e-5);
    }
  });
}

// A rank that goes on while another has left hears of it at once, by name, and not by timeout.
TEST(Ranks, MoreBatchesThanAnotherRankIsRefusedByName) {
  testing::run_ranks(2, [](const Environment& environment) {
    auto group = std::make_unique<Group>(environment);
    auto net = std::make_unique<DistributedDataParallel<testing::TiedToy>>(
        make_module<testing::TiedToy>(21), *group);
    const auto step = [&](int number) {
      backward_of_own_rows(*net, *group, Rows(number, at::kCPU), /*micro_steps=*/1);
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
  NamedTensors pieces =
      cut_joined(in_memory(whole), parameters,
                 {{"plain", plain, 0, 5}, {"plain", plain, 5, 12}, {"turned", turned, 0, 6}});
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
