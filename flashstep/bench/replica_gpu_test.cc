// What the benchmarks of data parallelism compute on two GPUs over NCCL.
#include <functional>

#include <gtest/gtest.h>

#include "flashstep/bench/model_run.h"
#include "flashstep/bench/replica.h"
#include "flashstep/bench/test_update_trace.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

Workload small() {
  Workload workload;
  workload.model = model_by_name("256/1024/4/4");
  workload.model.context_length = 64;
  workload.batch_size = 4;
  workload.device = "cuda";
  return resolved_workload(workload);
}

void on_two_gpus(const std::function<void(Group&, at::Device)>& body) {
  testing::run_ranks(2, [&](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    GroupOptions options;
    options.nccl = true;
    Group group(environment, options);
    body(group, device);
  });
}

TEST(GpuReplica, WeightsAreDrawnAlikeAndOfTheModelsDistributions) {
  FLASHSTEP_NEED_GPUS(1);
  const at::Device device = current_device("cuda");
  at::manual_seed(3);
  const Tensor expected = at::randn({8}, device);
  at::manual_seed(3);
  const Transformer model = make_model(small().model, 1, device);
  EXPECT_TRUE(testing::same_bits(at::randn({8}, device).cpu(), expected.cpu()))
      << "LibTorch's own generator is left alone";
  const Transformer again = make_model(small().model, 1, device);
  const Transformer other = make_model(small().model, 2, device);
  const Transformer on_cpu = make_model(small().model, 1, at::kCPU);
  bool differs = false;
  for (const auto& entry : model->named_parameters()) {
    const std::string& name = entry.key();
    const Tensor mine = entry.value().detach().cpu();
    EXPECT_TRUE(testing::same_bits(mine, again->named_parameters()[name].detach().cpu())) << name;
    differs |= !testing::same_bits(mine, other->named_parameters()[name].detach().cpu());
    const Tensor drawn = on_cpu->named_parameters()[name].detach();
    EXPECT_NEAR(mine.std().item<double>(), drawn.std().item<double>(),
                0.02 * drawn.std().item<double>())
        << name;
    EXPECT_NEAR(mine.mean().item<double>(), drawn.mean().item<double>(), 0.02) << name;
  }
  EXPECT_TRUE(differs) << "the seed counts";
}

TEST(GpuReplica, UpdatesAsOneProcessDoes) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](Group& group, at::Device device) {
    Replica replica(small(), group, device);
    EXPECT_LE(replica.weight_error(division_by_name("bucketed 0"), 2), 1e-3);
    EXPECT_GT(replica.weight_error(division_by_name("none"), 2), 0.05);
  });
}

// The device has nothing to do when the first step begins, and is behind the host when work that
// takes it longer than the host lies before a step.
TEST(GpuReplica, TheHostsLeadIsSeen) {
  FLASHSTEP_NEED_GPUS(1);
  const at::Device device = current_device("cuda");
  const Tensor a = at::ones({8192, 8192}, device);
  a.matmul(a);  // loads what it needs
  synchronize(device);
  Marks marks(device);
  marks.set();
  marks.set();
  for (int i = 0; i < 20; ++i) a.matmul(a);
  marks.set();
  const std::vector<double> seconds = marks.seconds(), leads = marks.leads();
  ASSERT_EQ(leads.size(), 3u);
  EXPECT_EQ(leads[0], 0);
  EXPECT_NEAR(leads[1], 0, 1e-3);
  EXPECT_GT(leads[2], 0.5 * seconds[1]);
  EXPECT_LE(leads[2], seconds[0] + seconds[1]);
}

// Recording runs nothing, a replay is a step.
TEST(GpuReplica, RecordedStepsAreSteps) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](Group& group, at::Device device) {
    const GpuStream stream;
    const auto weights_after = [&](const std::string& division, bool recorded) {
      Replica replica(small(), group, device);
      replica.divide(division_by_name(division));
      replica.run(3);
      if (recorded) replica.record();
      EXPECT_EQ(replica.is_recorded(), recorded);
      EXPECT_EQ(replica.run(4).size(), 4u);
      std::vector<Tensor> weights;
      for (const Tensor& weight : replica.model().parameters())
        weights.push_back(weight.detach().clone());
      const Trace trace = replica.trace_step();
      if (group.is_first() && recorded && division != "none") {
        EXPECT_GT(trace.communication_seconds(), 0) << trace.failure;
        EXPECT_GT(trace.compute_seconds(), trace.exposed_seconds());
      }
      return weights;
    };
    for (const char* division : {"none", "bucketed 0", "bucketed 1"}) {
      SCOPED_TRACE(division);
      const auto stepped = weights_after(division, false);
      const auto replayed = weights_after(division, true);
      for (size_t i = 0; i < stepped.size(); ++i) {
        // AdamW's first steps are as long as the learning rate; sums may round differently.
        EXPECT_LE((replayed[i] - stepped[i]).abs().mean().item<double>(), 0.05 * kLearningRate)
            << i;
      }
    }
  });
}

TEST(GpuReplica, ReplaysUpdateAsOneProcessDoes) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](Group& group, at::Device device) {
    const GpuStream stream;
    Replica replica(small(), group, device);
    for (const char* division : {"bucketed 0", "bucketed 0 nccl"})
      EXPECT_LE(replica.weight_error(division_by_name(division), 2, /*recorded=*/true), 1e-3);
    EXPECT_GT(replica.weight_error(division_by_name("none"), 2, /*recorded=*/true), 0.05);
  });
}

TEST(GpuReplica, TheUpdateIsCutOutOfItsStep) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](Group& group, at::Device device) {
    Replica replica(small(), group, device);
    expect_updates_cut_out(replica, "bucketed 0", group.is_first());
  });
}

}  // namespace
}  // namespace flashstep::tools
