#include "flashstep/parallel/cost.h"

#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

// 100 parameters on 4 ranks: a copy of 400 bytes, 800 of moments; float32 on the wire.
ZeroSizes hundred_parameters() {
  return {.parameter_bytes = 400,
          .gradient_bytes = 400,
          .state_bytes = 800,
          .sent_parameter_bytes = 400,
          .sent_gradient_bytes = 400,
          .layer_bytes = 40};
}

TEST(ZeroCost, DividesOneThingMoreWithEachStage) {
  const ZeroCost none = zero_cost(ZeroStage::kNone, hundred_parameters(), 4);
  EXPECT_EQ(none.total(), 1600);
  EXPECT_EQ(none.sent_bytes, 600);  // 2 * 3 / 4 of 400
  const ZeroCost state = zero_cost(ZeroStage::kState, hundred_parameters(), 4);
  EXPECT_EQ(state.total(), 400 + 400 + 200);
  EXPECT_EQ(state.sent_bytes, 600);
  const ZeroCost gradients = zero_cost(ZeroStage::kGradients, hundred_parameters(), 4);
  EXPECT_EQ(gradients.total(), 400 + 100 + 200);
  EXPECT_EQ(gradients.sent_bytes, 600);
  const ZeroCost parameters = zero_cost(ZeroStage::kParameters, hundred_parameters(), 4);
  EXPECT_EQ(parameters.total(), 100 + 100 + 200 + 80);
  EXPECT_EQ(parameters.sent_bytes, 900);  // 3 * 3 / 4 of 400
}

TEST(ZeroCost, IsOneProcessWithoutOthers) {
  for (const auto stage :
       {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kParameters}) {
    EXPECT_EQ(zero_cost(stage, hundred_parameters(), 1).total(), 1600);
    EXPECT_EQ(zero_cost(stage, hundred_parameters(), 1).sent_bytes, 0);
  }
}

// 4 ranks, 400 bytes, 100 bytes/s, half a second a message. By hand: six steps of 100 bytes take 9
// s; three of 400 take 13.5 s; six of 400 27 s; both ways round six of 50 take 6 s.
TEST(AllReduceCost, AddsUpItsSteps) {
  const Link link{.bytes_per_second = 100, .latency_s = 0.5};
  const AllReduceCost ring = all_reduce_cost(AllReduce::kRing, 400, 4, link);
  EXPECT_EQ(ring.steps, 6);
  EXPECT_EQ(ring.sent_bytes, 600);
  EXPECT_EQ(ring.seconds, 9);
  EXPECT_EQ(all_reduce_cost(AllReduce::kTwoRings, 400, 4, link).seconds, 6);
  // Two ranks have one neighbour: two steps of 200 bytes.
  EXPECT_EQ(all_reduce_cost(AllReduce::kTwoRings, 400, 2, link).seconds,
            all_reduce_cost(AllReduce::kRing, 400, 2, link).seconds);
  const AllReduceCost whole = all_reduce_cost(AllReduce::kWholeTensors, 400, 4, link);
  EXPECT_EQ(whole.steps, 3);
  EXPECT_EQ(whole.sent_bytes, 1200);
  EXPECT_EQ(whole.seconds, 13.5);
  const AllReduceCost chain = all_reduce_cost(AllReduce::kThroughOneRank, 400, 4, link);
  EXPECT_EQ(chain.sent_bytes, 800);
  EXPECT_EQ(chain.seconds, 27);
  EXPECT_EQ(all_reduce_cost(AllReduce::kRing, 400, 1, link).seconds, 0);
}

// The handout's alternate ring, played: after N - 1 steps every rank has the sum of all.
TEST(AllReduceCost, WholeTensorsEndWithTheSum) {
  constexpr int kRanks = 5;
  std::vector<int> own = {1, 20, 300, 4000, 50000}, sums = own, travelling = own;
  int steps = 0, sent = 0;
  while (sums != std::vector<int>(kRanks, 54321)) {
    std::vector<int> arrived(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) arrived[(rank + 1) % kRanks] = travelling[rank];
    for (int rank = 0; rank < kRanks; ++rank) sums[rank] += arrived[rank];
    travelling = arrived;
    ++steps;
    ++sent;
    ASSERT_LT(steps, 2 * kRanks);
  }
  const AllReduceCost cost =
      all_reduce_cost(AllReduce::kWholeTensors, 1, kRanks, {.bytes_per_second = 1});
  EXPECT_EQ(cost.steps, steps);
  EXPECT_EQ(cost.sent_bytes, sent);
}

// o w N / (N - 2) with o w = 50 and N = 4: both take the same time at 100 bytes.
TEST(AllReduceCost, WholeTensorsWinBelowTheirLimit) {
  const Link link{.bytes_per_second = 100, .latency_s = 0.5};
  const double limit = whole_tensors_limit_bytes(4, link);
  EXPECT_EQ(limit, 100);
  const auto seconds = [&](AllReduce algorithm, double bytes) {
    return all_reduce_cost(algorithm, bytes, 4, link).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(AllReduce::kRing, limit), seconds(AllReduce::kWholeTensors, limit));
  EXPECT_GT(seconds(AllReduce::kRing, 0.9 * limit), seconds(AllReduce::kWholeTensors, 0.9 * limit));
  EXPECT_LT(seconds(AllReduce::kRing, 1.1 * limit), seconds(AllReduce::kWholeTensors, 1.1 * limit));
  EXPECT_TRUE(std::isinf(whole_tensors_limit_bytes(2, link)));
}

const FeedForward kLayer = {.d_model = 64, .d_ff = 256};                    // SwiGLU, 2 bytes
const Accelerator kAccelerator = {.flops_per_s = 1000, .bytes_per_s = 10};  // e C / W = 200

// B = 512 on 4 ranks, by hand: 6 B D F / 4 = 12,582,912 FLOPs forward; weights have 6 * 64 * 256 =
// 98,304 bytes, of which 3/4 are gathered; activations 2 * 512 * 64 = 65,536, of which 6/4 sent.
TEST(MeshCost, CountsAPassByHand) {
  const PassTimes fsdp = forward_times(kLayer, 512, {.data = 4}, kAccelerator);
  EXPECT_EQ(fsdp.flops, 12'582'912);
  EXPECT_EQ(fsdp.compute_s, 12'582.912);
  EXPECT_EQ(fsdp.data_s, 7372.8);
  EXPECT_EQ(fsdp.tensor_s, 0);
  EXPECT_EQ(backward_times(kLayer, 512, {.data = 4}, kAccelerator).flops, 2 * 12'582'912);
  EXPECT_EQ(backward_times(kLayer, 512, {.data = 4}, kAccelerator).data_s, 2 * 7372.8);
  const Mesh whole{.data = 4, .sharded = false};
  EXPECT_EQ(forward_times(kLayer, 512, whole, kAccelerator).data_s, 0);
  EXPECT_EQ(backward_times(kLayer, 512, whole, kAccelerator).data_s, 2 * 7372.8);
  const PassTimes tensor = forward_times(kLayer, 512, {.tensor = 4}, kAccelerator);
  EXPECT_EQ(tensor.flops, 12'582'912);
  EXPECT_EQ(tensor.tensor_s, 9830.4);
  EXPECT_EQ(tensor.data_s, 0);
  // Both axes: a quarter of the weights is gathered by two ranks, half of the rows all-reduced.
  const PassTimes both = forward_times(kLayer, 512, {.data = 2, .tensor = 2}, kAccelerator);
  EXPECT_EQ(both.flops, 12'582'912);
  EXPECT_EQ(both.data_s, 98'304.0 / 2 / 2 / 10);
  EXPECT_EQ(both.tensor_s, 65'536.0 / 2 / 10);
}

// At the bound computing takes exactly as long as sending: with N ranks that the bound names.
TEST(MeshCost, BoundsAreWhereSendingTakesAsLong) {
  const auto compute_over_sent = [](const PassTimes& t) {
    return t.compute_s / (t.data_s + t.tensor_s);
  };
  // 1 + 2 B / 200 = 9 for B = 800; TP: 1 + 3 F / 200 = 4 for F = 200, backward 7.
  EXPECT_EQ(most_data_parallel(kLayer, 800, kAccelerator), 9);
  EXPECT_DOUBLE_EQ(
      compute_over_sent(backward_times(kLayer, 800, {.data = 9, .sharded = false}, kAccelerator)),
      1);
  EXPECT_DOUBLE_EQ(compute_over_sent(forward_times(kLayer, 800, {.data = 9}, kAccelerator)), 1);
  EXPECT_DOUBLE_EQ(compute_over_sent(backward_times(kLayer, 800, {.data = 9}, kAccelerator)), 1);
  const FeedForward narrow{.d_model = 64, .d_ff = 200};
  EXPECT_EQ(most_tensor_parallel_forward(narrow, kAccelerator), 4);
  EXPECT_EQ(most_tensor_parallel_backward(narrow, kAccelerator), 7);
  for (const double tokens : {1.0, 800.0}) {  // whatever the batch
    EXPECT_DOUBLE_EQ(compute_over_sent(forward_times(narrow, tokens, {.tensor = 4}, kAccelerator)),
                     1);
    EXPECT_DOUBLE_EQ(compute_over_sent(backward_times(narrow, tokens, {.tensor = 7}, kAccelerator)),
                     1);
  }
}

// 3/2 B F (W / C)^2 and 3/8 of it for SwiGLU in 2 bytes, as the handout's letters give it.
TEST(MeshCost, BoundsTheMesh) {
  const double tokens = 1e6, w_over_c = 0.01;
  EXPECT_DOUBLE_EQ(most_mesh(kLayer, tokens, kAccelerator, true),
                   1.5 * tokens * 256 * w_over_c * w_over_c);
  EXPECT_DOUBLE_EQ(most_mesh(kLayer, tokens, kAccelerator, false),
                   0.375 * tokens * 256 * w_over_c * w_over_c);
  EXPECT_DOUBLE_EQ(best_mesh_ratio(kLayer, tokens), 2 * tokens / (3 * 256));
  // No split of so many ranks is better than the bound says, and the best one reaches it.
  const double most = most_mesh(kLayer, tokens, kAccelerator, false);
  const double compute = 6 * tokens * 64 * 256 / most / 1000;
  double least = INFINITY;
  for (double x = 1; x < most; x *= 1.001) {
    const double y = most / x;
    const double weights = 6.0 * 64 * 256 / y / 10, activations = 4 * tokens * 64 / x / 10;
    least = std::min(least, weights + activations);
  }
  EXPECT_NEAR(least / compute, 1, 1e-5);
}

// The 2025 handout: D 16384, F 53248, 126 blocks of two matrices, W 1.8e11, C 4.6e14, X 16, Y 4.
TEST(MeshCost, AccountsForTheHandoutsXxl) {
  const FeedForward layer{.d_model = 16384, .d_ff = 53248, .matrices = 2};
  const double parameters = feed_forward_parameters(layer, 126);
  EXPECT_EQ(parameters, 219'848'638'464);  // 126 * 2 * 872,415,232
  EXPECT_EQ(feed_forward_saved_bytes(layer, 126, 1), 2.0 * 126 * (16384 + 53248));
  EXPECT_EQ(least_ranks(16 * parameters, 0, 95e9), 38);  // 3,517.6 / 37 = 95.07
  EXPECT_LT(divided_bytes(16 * parameters, 0, 38), 95e9);
  EXPECT_GE(divided_bytes(16 * parameters, 0, 37), 95e9);
  const Accelerator tpu{.flops_per_s = 4.6e14, .bytes_per_s = 1.8e11};
  const Mesh mesh{.data = 16, .tensor = 4, .data_links = 2, .tensor_links = 1};
  EXPECT_NEAR(least_tokens(layer, mesh, tpu, true), 16 * 4.6e14 / (1.8e11 * 2), 1e-6);  // 20,444
  EXPECT_NEAR(least_tokens(layer, mesh, tpu, true) / 64, 319.44, 0.01);
  // 1 - 4 * 2555.56 / 53248 = 0.80803: 25,301.7 tokens, 395.3 a device.
  EXPECT_NEAR(least_tokens(layer, mesh, tpu, false) / 64, 395.3, 0.1);
}

TEST(MeshCost, OneRankOnAnAxisSendsNothingThere) {
  const Mesh gathers{.data = 4}, sends{.tensor = 3};
  EXPECT_EQ(least_tokens(kLayer, gathers, kAccelerator, false),
            least_tokens(kLayer, gathers, kAccelerator, true));
  for (const bool at_once : {true, false}) {
    EXPECT_EQ(least_tokens(kLayer, {}, kAccelerator, at_once), 0);
    EXPECT_EQ(least_tokens(kLayer, sends, kAccelerator, at_once), 0);
  }
}

TEST(MeshCost, HasNoBatchForTooManyTensorRanks) {
  const Mesh mesh{.data = 2, .tensor = 4};  // 3 * 256 / 200 = 3.84 are most
  EXPECT_TRUE(std::isinf(least_tokens(kLayer, mesh, kAccelerator, true)));
  EXPECT_TRUE(std::isfinite(least_tokens(kLayer, {.data = 2, .tensor = 3}, kAccelerator, true)));
}

TEST(MeshCost, KeepsMoreThanHalfOfTheActivations) {
  // State 900, activations 200: (900 + 100) / N + 100 < 300 from N = 6 on (5 gives 300).
  EXPECT_EQ(divided_bytes(900, 200, 5), 300);
  EXPECT_EQ(least_ranks(900, 200, 300), 6);
  EXPECT_EQ(least_ranks(900, 200, 100), 0);
}

// 1,000 elements of 2 bytes: a root of 200, units of 100, 4 ranks.
TEST(FullSharding, CountsWhatARankHoldsAndSends) {
  const FullShardStep step =
      full_shard_step({.elements = 1000, .root = 200, .unit = 100, .travel = 2, .copies = true}, 4);
  EXPECT_EQ(step.slots, 400 + 2 * 200.0);
  EXPECT_EQ(step.inboxes, 2 * 300.0);    // 2 x 3 rows of a quarter of the root
  EXPECT_EQ(step.in_flight, 2 * 200.0);  // two units' gradients
  EXPECT_EQ(step.sent, 0.75 * (3 * 2000 - 400));
  EXPECT_EQ(step.exposed, 2 * 0.75 * (400 + 200));
  // Pushed and arrived; 500 bytes copied within the rank for each gather; 4 x 500 summed up to 500.
  EXPECT_EQ(step.moved, 2 * step.sent + 2 * 2 * 500 + 2000 + 500);
  const FullShardStep sent =
      full_shard_step({.elements = 1000, .root = 200, .unit = 100, .travel = 2}, 4);
  EXPECT_EQ(sent.inboxes, 0);
  EXPECT_EQ(sent.in_flight,
            3 * 2 * 200.0);  // beside them a message that is sent and one that comes
}

}  // namespace
}  // namespace flashstep
