#include "flashstep/bench/model_run.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include "flashstep/bench/test_workload.h"
#include "flashstep/profiling.h"

namespace flashstep::tools {
namespace {

TEST(ModelRun, RowsAreDrawnFromTheSeedAlone) {
  const ModelConfig model = resolved_workload(small_workload()).model;
  torch::manual_seed(5);
  const TokenRows a = random_rows(model, 2, 7, at::kCPU);
  const double after = torch::rand({1}).item<double>();
  torch::manual_seed(5);
  EXPECT_EQ(torch::rand({1}).item<double>(), after) << "LibTorch's own generator was used";
  const TokenRows b = random_rows(model, 2, 7, at::kCPU), c = random_rows(model, 2, 8, at::kCPU);
  EXPECT_TRUE(a.inputs.equal(b.inputs) && a.targets.equal(b.targets));
  EXPECT_FALSE(a.inputs.equal(c.inputs));
  EXPECT_FALSE(a.inputs.equal(a.targets));
  EXPECT_EQ(a.inputs.sizes(), (std::vector<int64_t>{2, 16}));
  EXPECT_LT(a.inputs.max().item<int64_t>(), model.vocab_size);
}

TEST(ModelRun, DoesAsMuchAsTheModeSays) {
  for (const std::string& mode : workload_modes()) {
    SCOPED_TRACE(mode);
    ModelRun run(small_workload(mode));
    const auto weights = [&] {
      return torch::nn::utils::parameters_to_vector(run.model().parameters());
    };
    const at::Tensor before = weights();
    const StepTimes times = run.timed_pass();
    EXPECT_GT(times.forward, 0);
    EXPECT_EQ(times.backward > 0, mode != "forward");
    EXPECT_EQ(times.optimizer > 0, mode == "step");
    EXPECT_GE(times.total, times.forward + times.backward + times.optimizer);
    EXPECT_EQ(run.model().parameters().front().grad().defined(), mode != "forward");
    EXPECT_EQ(weights().equal(before), mode != "step");
    EXPECT_EQ(run.forward().requires_grad(), mode != "forward");
  }
}

TEST(ModelRun, AStepIsTrainsStep) {
  ModelRun run(small_workload());
  Transformer model(run.workload().model, 1);
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  TrainStep step(model->parameters(), optimizer,
                 [&](int64_t, int64_t) { return loss_of(*model, run.rows(), "fp32"); },
                 {.max_norm = 1});
  for (int i = 0; i < 3; ++i) {
    run.pass();
    step.run(i);
  }
  const auto theirs = model->parameters(), ours = run.model().parameters();
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(theirs[i])) << i;
}

TEST(ModelRun, ItsPartsAreToldInTheirOrder) {
  using Part = ModelRun::Part;
  const std::map<std::string, std::vector<Part>> parts = {
      {"forward", {Part::kForward}},
      {"forward-backward", {Part::kForward, Part::kBackward}},
      {"step", {Part::kForward, Part::kBackward, Part::kUpdate}}};
  for (const auto& [mode, expected] : parts) {
    ModelRun run(small_workload(mode));
    std::vector<Part> told;
    run.pass([&](Part part) {
      told.push_back(part);
      EXPECT_EQ(run.model().parameters().front().grad().defined(), part != Part::kForward);
    });
    EXPECT_EQ(told, expected) << mode;
  }
}

TEST(ModelRun, Bfloat16RoundsTheLoss) {
  Workload workload = small_workload("forward");
  ModelRun wide(workload);
  workload.precision = "bf16";
  ModelRun narrow(workload);
  const double a = wide.forward().item<double>(), b = narrow.forward().item<double>();
  EXPECT_NE(a, b);
  EXPECT_NEAR(a, b, 0.05);  // of about ln 64: a hundredth
}

class Heard : public RangeListener {
 public:
  void begin_range(const char* name) override { names.emplace_back(name); }
  void end_range() override { ++ended; }
  std::vector<std::string> names;
  size_t ended = 0;
};

TEST(ModelRun, HasARangeForEachPart) {
  ModelRun run(small_workload());
  Heard heard;
  listen_to_ranges(&heard);
  run.pass();
  listen_to_ranges(nullptr);
  std::vector<std::string> parts;  // the model may have ranges of its own within
  for (const std::string& name : heard.names) {
    if (name == "forward" || name == "backward" || name == "optimizer") parts.push_back(name);
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"forward", "backward", "optimizer"}));
  EXPECT_EQ(heard.ended, heard.names.size());
}

}  // namespace
}  // namespace flashstep::tools
