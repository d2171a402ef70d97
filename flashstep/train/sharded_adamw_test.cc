// The divided AdamW: its state as a whole, and the buckets that a checkpoint keeps.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "flashstep/optim.h"
#include "flashstep/testing/archives.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/run_state.h"

namespace flashstep {
namespace {

using testing::archive_of;
using testing::load_archive;
using testing::same_bits;
using torch::Tensor;
using torch::optim::AdamWOptions;

// Two of them are not row by row in memory.
std::vector<Tensor> permuted_parameters() {
  torch::manual_seed(51);
  std::vector<Tensor> parameters = {
      torch::randn({5, 3}), torch::randn({4, 6}).t(),
      torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast)};
  for (Tensor& parameter : parameters) parameter = parameter.detach().requires_grad_();
  return parameters;
}

void set_contiguous_gradients(const std::vector<Tensor>& parameters, int step) {
  torch::manual_seed(3000 + step);
  for (const Tensor& parameter : parameters)
    parameter.mutable_grad() = torch::randn(parameter.sizes());
}

void expect_step(torch::optim::Optimizer& actual, const std::vector<Tensor>& own,
                 torch::optim::Optimizer& expected, const std::vector<Tensor>& reference,
                 int step) {
  set_contiguous_gradients(own, step);
  set_contiguous_gradients(reference, step);
  actual.step();
  expected.step();
  for (size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(same_bits(own[i].detach(), reference[i].detach())) << "step " << step << ", " << i;
}

void copy(const std::vector<Tensor>& from, const std::vector<Tensor>& to) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

// Its kernel takes parameter, gradient and moments by one index: moments that came back in another
// order of memory would be other elements'.
void expect_whole_adamw(const Group& group, ShardMode mode, at::ScalarType moments) {
  const AdamWOptions options(0.01);
  const ShardOptions shards = {.mode = mode, .bucket_megabytes = 1e-4};
  const auto own = permuted_parameters(), reference = permuted_parameters();
  ShardedAdamW sharded(own, options, group, shards);
  AdamW whole(reference, options);
  sharded.keep_moments_in(moments);
  whole.keep_moments_in(moments);
  for (int step = 0; step < 3; ++step) expect_step(sharded, own, whole, reference, step);
  sharded.consolidate(0);
  const std::string archive = group.broadcast(group.is_first() ? archive_of(sharded) : "");

  const auto single = permuted_parameters(), again = permuted_parameters();
  copy(own, single);
  copy(own, again);
  AdamW restored(single, options);
  restored.keep_moments_in(moments);
  load_archive(restored, archive);
  expect_step(restored, single, whole, reference, 3);
  ShardedAdamW resumed(again, options, group, shards);
  resumed.keep_moments_in(moments);
  load_archive(resumed, archive);
  set_contiguous_gradients(again, 3);
  resumed.step();
  expect_step(resumed, again, whole, reference, 4);
}

TEST(ShardedAdamW, ConsolidatedStateKeepsTheOrderOfMemory) {
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const auto moments : {at::kFloat, at::kBFloat16}) {
        expect_whole_adamw(group, ShardMode::kWhole, moments);
        expect_whole_adamw(group, ShardMode::kFlat, moments);
      }
    });
  }
}

struct SixWeights : torch::nn::Module {
  std::vector<Tensor> weights;
  SixWeights() {
    for (int i = 0; i < 6; ++i)
      weights.push_back(register_parameter(str("w", i), torch::ones({100}) * (i + 1)));
  }
};

// What three steps in fp16 leave: the weights, and the loss scale. In the second one, one element
// of one rank's gradient overflows when the loss is scaled.
std::vector<Tensor> trained_in_fp16(const std::string& shards, Group& group) {
  SixWeights net;
  ParallelConfig config;
  config.shard_optimizer = shards;
  const auto ranks = parallelize(net, config, &group);
  const auto optimizer = make_optimizer(net, AdamWOptions(0.01), config, *ranks);
  const auto loss = [&](int64_t step, int64_t) {
    Tensor factors = torch::ones({100});
    if (step == 1 && group.rank() == 1) factors[7] = 1e36;
    Tensor sum = torch::zeros({});
    for (const Tensor& weight : net.weights) sum = sum + (weight * factors).sum();
    return sum;
  };
  TrainStep train_step(net.parameters(), *optimizer, loss, {.precision = Precision::kFloat16},
                       ranks);
  for (int64_t step = 0; step < 3; ++step)
    EXPECT_EQ(train_step.run(step).skipped.item<float>(), step == 1) << "step " << step;
  std::vector<Tensor> result;
  for (const Tensor& weight : net.weights) result.push_back(weight.detach().clone());
  result.push_back(train_step.state().front().second.clone());
  return result;
}

TEST(ShardedAdamW, OverflowInOneRanksPartSkipsTheStepOnAll) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    const auto expected = trained_in_fp16("none", group);
    EXPECT_EQ(expected.back().item<float>(), 32768);  // halved once
    const auto divided = trained_in_fp16("flat", group);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(divided[i], expected[i])) << i;
  });
}

// A run that can be resumed, with `bucket_megabytes` in its config.
struct Resumable {
  SixWeights net;
  std::shared_ptr<Parallelism> ranks;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<Job> job;
  std::unique_ptr<TrainStep> step;

  Resumable(double bucket_megabytes, Group& group) {
    ParallelConfig config;
    config.bucket_megabytes = bucket_megabytes;
    ranks = parallelize(net, config, &group);
    optimizer = make_optimizer(net, AdamWOptions(0.01), config, *ranks);
    job.reset(new Job{net, *optimizer, [this](int64_t, int64_t) {
                        Tensor loss = torch::zeros({});
                        for (const Tensor& weight : net.weights) loss = loss + weight.sum();
                        return loss;
                      }});
    job->parallel = ranks;
    job->config_json = str(R"({"parallel": {"bucket_megabytes": )", bucket_megabytes, "}}");
    step =
        std::make_unique<TrainStep>(net.parameters(), *optimizer, job->loss, StepOptions(), ranks);
  }
  size_t buckets() const { return ranks->reducer()->buckets().size(); }
};

TEST(Resume, BucketsAreThoseOfTheCheckpointUnlessTheConfigGivesTheirSize) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    Resumable before(0.0008, group);  // two parameters each
    before.step->run(0);
    EXPECT_EQ(before.buckets(), 3u);
    const Checkpoint checkpoint = make_checkpoint(*before.job, *before.step, {}, 1);
    Resumable chosen(0, group);
    EXPECT_EQ(chosen.buckets(), 1u);  // 25 MB
    restore_checkpoint(in_memory(checkpoint), *chosen.job, *chosen.step);
    EXPECT_EQ(chosen.ranks->reducer()->buckets(), before.ranks->reducer()->buckets());
    Resumable given(0.0012, group);
    restore_checkpoint(in_memory(checkpoint), *given.job, *given.step);
    EXPECT_EQ(given.buckets(), 2u);
    // An earlier version's checkpoint has the size in its config only.
    Checkpoint old = checkpoint;
    auto json = nlohmann::ordered_json::parse(old.state_json);
    EXPECT_EQ(json.erase("bucket_megabytes"), 1u);
    old.state_json = json.dump();
    Resumable other(0, group);
    restore_checkpoint(in_memory(old), *other.job, *other.step);
    EXPECT_EQ(other.buckets(), 3u);
  });
}

// AdamW refuses complex parameters; rank 0 alone has the only one.
TEST(ShardedAdamW, WhatOneRankRefusesIsRefusedOnAll) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const std::vector<Tensor> complex = {torch::ones({3}, torch::kComplexFloat).requires_grad_()};
    testing::expect_sentence([&] { ShardedAdamW(complex, AdamWOptions(1e-2), group); },
                             {"floating-point", "ComplexFloat"});
    EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 2);
  });
}

}  // namespace
}  // namespace flashstep
