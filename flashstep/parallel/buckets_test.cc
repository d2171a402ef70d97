// Which parameters lie together, and the views through which gradients are seen.
#include "flashstep/parallel/buckets.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "flashstep/parallel/cost.h"
#include "flashstep/parallel/shards.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using torch::Tensor;
using Indices = std::vector<std::vector<int64_t>>;

Indices parameters_in(const std::vector<BucketLayout>& layouts) {
  Indices result;
  for (const BucketLayout& layout : layouts) result.push_back(layout.parameters);
  return result;
}

std::vector<Tensor> trained(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& p : module.parameters()) {
    if (p.requires_grad()) result.push_back(p);
  }
  return result;
}

TEST(Buckets, TheParameterThatFillsABucketClosesIt) {
  const testing::PlainToy toy;  // 400, 2000 and 1000 bytes
  const auto parameters = trained(toy);
  ASSERT_EQ(parameters.size(), 3u);
  const std::vector<int64_t> order = {2, 1, 0};
  const auto plan = [&](double bytes) {
    return parameters_in(plan_buckets(parameters, gradient_dtypes(parameters), order, bytes));
  };
  EXPECT_EQ(plan(1600), (Indices{{2, 1}, {0}}));
  EXPECT_EQ(plan(100), (Indices{{2}, {1}, {0}}));
  EXPECT_EQ(plan(1e4), (Indices{{2, 1, 0}}));
  EXPECT_EQ(plan(0), (Indices{{2}, {1}, {0}}));
  EXPECT_EQ(plan(std::numeric_limits<double>::infinity()), (Indices{{2, 1, 0}}));
  EXPECT_EQ(plan(3000), (Indices{{2, 1}, {0}})) << "3000 bytes are at least 3000";
  EXPECT_TRUE(plan_buckets({}, {}, {}, 1).empty());
}

TEST(Buckets, TheLastAreSmaller) {
  std::vector<Tensor> parameters(40);
  for (Tensor& parameter : parameters) parameter = torch::empty({25});  // 100 bytes
  std::vector<int64_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const auto sizes = [&](double bytes, double last_bytes) {
    std::vector<size_t> result;
    for (const BucketLayout& layout :
         plan_buckets(parameters, gradient_dtypes(parameters), order, bytes, last_bytes)) {
      result.push_back(layout.parameters.size());
    }
    return result;
  };
  EXPECT_EQ(sizes(1500, 200), (std::vector<size_t>{15, 11, 8, 4, 2}));
  EXPECT_EQ(sizes(1500, 2000), (std::vector<size_t>{15, 15, 10}));
  EXPECT_EQ(sizes(1e9, 1e9), (std::vector<size_t>{40}));
  EXPECT_EQ(sizes(0, 200), std::vector<size_t>(40, 1));
}

TEST(Buckets, SlotsAreAlignedAndDoNotOverlap) {
  const std::vector<Tensor> parameters = {torch::zeros({3}), torch::zeros({16}), torch::zeros({}),
                                          torch::zeros({0}), torch::zeros({17})};
  const auto layouts = plan_buckets(parameters, gradient_dtypes(parameters), {0, 1, 2, 3, 4}, 1e9);
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0].offsets, (std::vector<int64_t>{0, 16, 32, 48, 48}));
  EXPECT_EQ(layouts[0].numel, 48 + 32);
}

TEST(Buckets, OneKindPerBucketInTheOrderOfTheirLastParameter) {
  const std::vector<Tensor> parameters = {torch::zeros({4}), torch::zeros({4}, torch::kDouble),
                                          torch::zeros({4}), torch::zeros({4}, torch::kBFloat16),
                                          torch::zeros({4}, torch::kDouble)};
  EXPECT_EQ(
      parameters_in(plan_buckets(parameters, gradient_dtypes(parameters), {0, 1, 2, 3, 4}, 1e9)),
      (Indices{{0, 2}, {3}, {1, 4}}));
}

TEST(Buckets, SlotsAreNoViewsToAutograd) {
  Tensor parameter = torch::randn({4, 3}).t().requires_grad_();  // dense, columns first
  const Tensor flat = torch::zeros({32});
  parameter.mutable_grad() = slot_view(flat, 16, parameter);
  EXPECT_EQ(parameter.grad().strides(), parameter.strides());
  EXPECT_FALSE(parameter.grad().is_view());
  parameter.grad().fill_(2);
  EXPECT_EQ(flat.sum().item<float>(), 24);
  EXPECT_EQ(flat.slice(0, 0, 16).sum().item<float>(), 0);
  torch::optim::SGD optimizer({parameter}, 0.1);
  optimizer.zero_grad(/*set_to_none=*/false);  // detaches in place, which throws on views
  EXPECT_EQ(flat.sum().item<float>(), 0);
  (parameter * 3).sum().backward();
  EXPECT_EQ(flat.sum().item<float>(), 36) << "autograd adds into the slot";
  EXPECT_TRUE(is_same_view(parameter.grad(), slot_view(flat, 16, parameter)));
  EXPECT_FALSE(is_same_view(parameter.grad(), slot_view(flat, 0, parameter)));
}

TEST(Shards, GreedyBySize) {
  std::vector<int64_t> loads(2, 0);
  EXPECT_EQ(assign_greedily({3, 7, 5, 4}, loads), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(loads, (std::vector<int64_t>{10, 9}));
  EXPECT_NEAR(imbalance(loads), 10 / 9.5 - 1, 1e-12);
  EXPECT_EQ(assign_greedily({2}, loads), (std::vector<int>{1}))
      << "what came later is added on top";
  EXPECT_EQ(imbalance({0, 0}), 0);
  EXPECT_EQ(imbalance({4, 4, 4}), 0);
}

TEST(Cost, WhatEachSchemeSends) {
  // 8 GB on 2 ranks: half of it there, half back.
  EXPECT_EQ(all_reduce_bytes(8e9, 2), 8e9);
  EXPECT_EQ(all_reduce_bytes(8e9, 4), 12e9);
  EXPECT_EQ(all_gather_bytes(8e9, 4) + reduce_scatter_bytes(8e9, 4), all_reduce_bytes(8e9, 4));
  EXPECT_EQ(all_reduce_bytes(8e9, 1), 0);
  // Flat shards send what an all-reduce sends, and keep 1/W of gradients and state.
  const ShardedStepSizes sizes{8e9, 16e9, 25e6, 64e6};
  const ShardedStep none = sharded_step(Sharding::kNone, sizes, 4),
                    whole = sharded_step(Sharding::kWhole, sizes, 4),
                    flat = sharded_step(Sharding::kFlat, sizes, 4);
  EXPECT_EQ(none.sent_bytes, 12e9);
  EXPECT_EQ(whole.sent_bytes, 18e9);
  EXPECT_EQ(flat.sent_bytes, 12e9);
  EXPECT_EQ(whole.gradient_bytes, 8e9);
  EXPECT_EQ(flat.gradient_bytes, 2e9);
  EXPECT_EQ(flat.state_bytes, 4e9);
  EXPECT_EQ(whole.state_bytes, 4e9);
  EXPECT_EQ(flat.launches, 320 + 32);  // 2e9 / 64e6 = 31.25 parts
  // Between GPUs of one machine gradients are not reduce-scattered, and copies are no launches.
  const ShardedStepSizes near{8e9, 16e9, 25e6, 64e6, /*nccl=*/true, /*one_machine=*/true};
  const ShardedStep flat_near = sharded_step(Sharding::kFlat, near, 4);
  EXPECT_EQ(flat_near.sent_bytes, 18e9);
  EXPECT_EQ(flat_near.gradient_bytes, 2e9);
  EXPECT_EQ(flat_near.launches, 320);
  EXPECT_EQ(sharded_step(Sharding::kWhole, near, 4).launches, 320);
  EXPECT_EQ(sharded_step(Sharding::kWhole, near, 4).sent_bytes, 18e9);
  EXPECT_EQ(flat.transit_bytes, 5 * 25e6);
  // The best bucket of 8 GB at 100 GB/s and 20 us a bucket.
  const BucketModel model{8e9, 100e9, 20e-6};
  const double best = best_bucket_bytes(model);
  EXPECT_NEAR(best, 126.49e6, 0.01e6);
  EXPECT_LT(bucket_overhead_s(model, best), bucket_overhead_s(model, best / 2));
  EXPECT_LT(bucket_overhead_s(model, best), bucket_overhead_s(model, best * 2));
  EXPECT_NEAR(bucket_overhead_s(model, best), 2 * std::sqrt(8e9 * 20e-6 / 100e9), 1e-9);
}

TEST(Cost, FlatShardsWithFewBuckets) {
  // Three buckets on Gloo: all are sent and received at once. Parts are so small that the update's
  // copies are less.
  ShardedStepSizes sizes{75e6, 150e6, 25e6, 1e6, /*nccl=*/false};
  EXPECT_EQ(sharded_step(Sharding::kFlat, sizes, 2).transit_bytes, 3 * 2 * 25e6);
  sizes.nccl = true;
  EXPECT_EQ(sharded_step(Sharding::kFlat, sizes, 2).transit_bytes, 3 * 25e6);
  // Many buckets on Gloo: nine, or two parts of every rank, gathered into copies.
  sizes = {8e9, 16e9, 25e6, 1e6, /*nccl=*/false};
  EXPECT_EQ(sharded_step(Sharding::kFlat, sizes, 4).transit_bytes, 9 * 25e6);
  sizes.part_bytes = 64e6;
  EXPECT_EQ(sharded_step(Sharding::kFlat, sizes, 4).transit_bytes, 2 * 4 * 64e6);
  // All in one bucket, as strategy flat has it.
  sizes = {8e9, 16e9, std::numeric_limits<double>::infinity(), 64e6};
  const ShardedStep flat = sharded_step(Sharding::kFlat, sizes, 4);
  EXPECT_EQ(flat.launches, 1 + 1);
  EXPECT_EQ(flat.transit_bytes, 8e9);
  EXPECT_EQ(sharded_step(Sharding::kNone, sizes, 4).transit_bytes, 8e9);
}

TEST(Cost, TheSizeOfBucketsIsChosenByGradientsAndBackend) {
  EXPECT_EQ(chosen_bucket_bytes(8e9, /*nccl=*/false, 8), 25e6);
  EXPECT_EQ(chosen_bucket_bytes(5e7, /*nccl=*/true, 2), 25e6);
  EXPECT_EQ(chosen_bucket_bytes(0, /*nccl=*/true, 2), 25e6);
  // Of 8 GB the best that was measured lies between 200 and 400 MB.
  EXPECT_NEAR(chosen_bucket_bytes(8e9, /*nccl=*/true, 2), 269.8e6, 0.1e6);
  EXPECT_NEAR(chosen_bucket_bytes(32e9, /*nccl=*/true, 2), 2 * 269.8e6, 0.2e6);
  // Of 4 GB between eight H200s 400 MB are better than 200 and than 800.
  EXPECT_NEAR(chosen_bucket_bytes(4e9, /*nccl=*/true, 8), 381.6e6, 0.1e6);
  EXPECT_EQ(chosen_bucket_bytes(4e9, /*nccl=*/true, 100),
            chosen_bucket_bytes(4e9, /*nccl=*/true, 8));
  // What is packed with two ranks is packed with eight.
  EXPECT_EQ(chosen_bucket_bytes(1e8, /*nccl=*/true, 8), chosen_bucket_bytes(1e8, /*nccl=*/true, 2));
  // Flat shards: five buckets at most what is kept, 8e9 / W.
  EXPECT_EQ(chosen_flat_bytes(8e9, /*nccl=*/true, 2), chosen_bucket_bytes(8e9, /*nccl=*/true, 2));
  EXPECT_EQ(chosen_flat_bytes(8e9, /*nccl=*/true, 16), 100e6);
  EXPECT_EQ(chosen_flat_bytes(8e9, /*nccl=*/true, 1000), 25e6);
  EXPECT_EQ(chosen_flat_bytes(8e9, /*nccl=*/false, 2), 25e6);
}

}  // namespace
}  // namespace flashstep
