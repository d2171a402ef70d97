#include "flashstep/trace/trace.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "flashstep/group.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::tools {
namespace {

TEST(Trace, SharesOfCommunication) {
  Trace trace;
  EXPECT_TRUE(std::isnan(trace.hidden_share()));
  trace.compute = {{0, 4}, {5, 6}};
  trace.communication = {{3, 5.5}};
  EXPECT_DOUBLE_EQ(trace.communication_seconds(), 2.5);
  EXPECT_DOUBLE_EQ(trace.exposed_seconds(), 1);
  EXPECT_DOUBLE_EQ(trace.hidden_share(), 0.6);
  EXPECT_DOUBLE_EQ(trace.seconds(), 6);
  const auto lanes = lanes_of(trace, "title").lanes;
  ASSERT_EQ(lanes.size(), 2u) << "no copies, no lane";
  EXPECT_EQ(lanes[1].label, "2500.0 ms");
}

TEST(Trace, LastPartIsCutAndCountedFromItsBeginning) {
  Trace trace;
  trace.compute = {{0, 4}, {5, 7}, {9, 10}};
  trace.copies = {{1, 2}};
  trace.communication = {{3, 5}, {5.5, 6.5}, {6, 8}};
  EXPECT_DOUBLE_EQ(trace.busy_seconds(), 9);
  const Trace part = last_part(trace, 4);
  using measure::Span;
  EXPECT_EQ(part.compute, (std::vector<Span>{{0, 1}, {3, 4}}));
  EXPECT_TRUE(part.copies.empty());
  EXPECT_EQ(part.communication, (std::vector<Span>{{0, 2}}))
      << "those that began before are not its own";
  EXPECT_DOUBLE_EQ(part.compute_seconds(), 2);
  EXPECT_DOUBLE_EQ(part.communication_seconds(), 2);
  EXPECT_DOUBLE_EQ(part.exposed_seconds(), 1);
  EXPECT_DOUBLE_EQ(part.busy_seconds(), 3);
  EXPECT_DOUBLE_EQ(part.seconds(), 4);
}

TEST(Trace, ACollectivesLateEndMovesNoBeginning) {
  Trace trace;
  trace.compute = {{0, 4}, {5, 10}};
  trace.communication = {{1, 2}, {7, 13}};
  using measure::Span;
  const Trace part = last_part(trace, 4);
  EXPECT_EQ(part.compute, (std::vector<Span>{{0, 4}}));
  EXPECT_EQ(part.communication, (std::vector<Span>{{1, 7}}));
}

TEST(Trace, SeesOperatorsOnTheCpu) {
  const at::Tensor x = torch::randn({256, 256});
  const Trace trace = tools::trace(at::kCPU, [&] {
    for (int i = 0; i < 10; ++i) x.mm(x);
  });
  EXPECT_EQ(trace.failure, "");
  EXPECT_FALSE(trace.compute.empty());
  EXPECT_TRUE(trace.communication.empty());
  EXPECT_NE(tools::trace(at::kCPU, [] {}).failure, "");
}

// A collective that a rank waits for is exposed; one beside which it computes is hidden. On a busy
// machine a rank may be put aside at any moment: the best of a few tries counts.
TEST(Trace, TellsHiddenFromExposedCommunication) {
  testing::run_ranks(2, [](const Environment& environment) {
    at::set_num_threads(1);
    Group group(environment);
    const at::Tensor x = torch::randn({512, 512});
    std::vector<at::Tensor> message = {torch::ones({1 << 22})};
    const auto send = [&] { return group.process_group().allreduce(message); };
    group.wait(send(), "warming up");

    double least = 1, most = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const Trace exposed = trace(at::kCPU, [&] {
        x.mm(x);
        group.wait(send(), "test");
      });
      EXPECT_GT(exposed.communication_seconds(), 0);
      least = std::min(least, exposed.hidden_share());

      const Trace hidden = trace(at::kCPU, [&] {
        const auto work = send();
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!work->isCompleted() && std::chrono::steady_clock::now() < deadline) x.mm(x);
        group.wait(work, "test");
      });
      most = std::max(most, hidden.hidden_share());
    }
    EXPECT_LT(least, 0.2);
    EXPECT_GT(most, 0.8);
  });
}

}  // namespace
}  // namespace flashstep::tools
