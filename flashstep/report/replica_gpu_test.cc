// What the benchmarks of data parallelism compute on two GPUs over NCCL.
#include <functional>

#include <gtest/gtest.h>

#include "flashstep/report/model_run.h"
#include "flashstep/report/replica.h"
#include "flashstep/report/test_update_trace.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::report {
namespace {

using at::Tensor;

Workload small() {
  ParallelCase c;
  c.model = "256/1024/4/4";
  c.context_length = 64;
  c.device = "cuda";
  return workload_of(c);
}

void on_two_gpus(const std::function<void(comm::Group&, at::Device)>& body) {
  testing::run_ranks(2, [&](const comm::Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    comm::GroupOptions options;
    options.nccl = true;
    comm::Group group(environment, options);
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
  on_two_gpus([](comm::Group& group, at::Device device) {
    Replica replica(small(), group, device);
    EXPECT_LE(replica.weight_error(division_by_name("bucketed 0"), 2), 1e-3);
    EXPECT_GT(replica.weight_error(division_by_name("none"), 2), 0.05);
  });
}

TEST(GpuReplica, TheUpdateIsCutOutOfItsStep) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](comm::Group& group, at::Device device) {
    Replica replica(small(), group, device);
    expect_updates_cut_out(replica, "bucketed 0", group.is_first());
  });
}

}  // namespace
}  // namespace flashstep::report
