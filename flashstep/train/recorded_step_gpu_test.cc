// Steps replayed from CUDA graphs against steps that are launched, to the bit, on one GPU.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/ops.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/optim.h"
#include "flashstep/products/product.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/test_recorded.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::kGpu;
using torch::Tensor;

TEST(GpuRecordedStep, ReplaysAreLaunchedSteps) {
  FLASHSTEP_NEED_GPUS(1);
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    for (const int64_t accumulation : {1, 2, 3, 4}) {
      SCOPED_TRACE(str("precision ", static_cast<int>(precision), ", ", accumulation));
      RecordedCase c;
      c.precision = precision;
      c.accumulation_steps = accumulation;
      const RecordedRun run = expect_recorded_as_launched(c, kGpu);
      EXPECT_TRUE(run.said.empty());
    }
  }
}

TEST(GpuRecordedStep, UpdatesInBackwardAreReplayed) {
  FLASHSTEP_NEED_GPUS(1);
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    SCOPED_TRACE(static_cast<int>(precision));
    RecordedCase c;
    c.precision = precision;
    c.max_norm = 0;
    const RecordedRun after = train_recorded(c, GraphMode::kOff, kGpu);
    c.update_in_backward = true;
    expect_same_weights(expect_recorded_as_launched(c, kGpu), after);
  }
}

// The embedding and the head add to one gradient, in every micro-batch.
TEST(GpuRecordedStep, GroupedQueriesAndTiesAreReplayed) {
  FLASHSTEP_NEED_GPUS(1);
  RecordedCase c;
  c.model.num_kv_heads = 1;
  c.model.tie_embeddings = true;
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    for (const int64_t accumulation : {1, 3}) {
      SCOPED_TRACE(str("precision ", static_cast<int>(precision), ", ", accumulation));
      c.precision = precision;
      c.accumulation_steps = accumulation;
      EXPECT_TRUE(expect_recorded_as_launched(c, kGpu).said.empty());
    }
  }
  c.max_norm = 0;
  c.accumulation_steps = 1;
  const RecordedRun after = train_recorded(c, GraphMode::kOff, kGpu);
  c.update_in_backward = true;
  expect_same_weights(expect_recorded_as_launched(c, kGpu), after);
}

TEST(GpuRecordedStep, SplitProductsShortMomentsAndStreamsAreReplayed) {
  FLASHSTEP_NEED_GPUS(1);
  RecordedCase c;
  c.moments = at::kBFloat16;
  expect_recorded_as_launched(c, kGpu);
  set_float32_products(Float32Products::kSplit);
  expect_recorded_as_launched(c, kGpu);
  set_float32_products(Float32Products::kExact);
  c.precision = Precision::kBFloat16;
  c.prepare = [](TransformerImpl& model) { model.set_short_stream(true); };
  expect_recorded_as_launched(c, kGpu);
}

TEST(GpuRecordedStep, ProductsOfFloat8AreReplayed) {
  FLASHSTEP_NEED_GPUS(1);
  if (!has_float8_products(kGpu)) GTEST_SKIP() << "a GPU without float8";
  RecordedCase c;
  c.precision = Precision::kBFloat16;
  c.prepare = [](TransformerImpl& model) {
    model.set_short_stream(true);
    model.set_float8_products(true);
  };
  for (const int64_t accumulation : {1, 2}) {
    c.accumulation_steps = accumulation;
    EXPECT_TRUE(expect_recorded_as_launched(c, kGpu).said.empty());
  }
}

TEST(GpuRecordedStep, MuonIsReplayed) {
  FLASHSTEP_NEED_GPUS(1);
  RecordedCase c;
  c.optimizer = "muon";
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    for (const auto moments : {at::kFloat, at::kBFloat16}) {
      c.precision = precision;
      c.moments = moments;
      expect_recorded_as_launched(c, kGpu);
    }
  }
}

TEST(GpuRecordedStep, RecomputedForwardPassesAreReplayedWithTheSameBits) {
  FLASHSTEP_NEED_GPUS(1);
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    RecordedCase c;
    c.precision = precision;
    const RecordedRun kept = train_recorded(c, GraphMode::kOff, kGpu);
    for (const int64_t group : {-1, 0, 1, 2}) {  // 0: norms alone, -1: and gates
      SCOPED_TRACE(str("precision ", static_cast<int>(precision), ", groups of ", group));
      c.prepare = [&](TransformerImpl& model) {
        if (group < 1)
          return model.set_recompute(group == 0 ? Recompute::kNorms : Recompute::kInner);
        model.set_recompute(Recompute::kBlock, group);
      };
      expect_same_runs(expect_recorded_as_launched(c, kGpu), kept);
    }
  }
}

TEST(GpuRecordedStep, ANonFiniteGradientSkipsAReplay) {
  FLASHSTEP_NEED_GPUS(1);
  // Times a weight of one block: 0, but NaN in one replay, and in another so great that the norm,
  // not the loss, overflows.
  const Tensor poison = torch::zeros({}, kGpu);
  RecordedCase c;
  c.loss_hook = [&](const Tensor& loss, TransformerImpl& model) {
    const Tensor weight = model.parameters()[3].flatten()[5];
    return loss + (weight - weight.detach()) * poison;
  };
  c.before_step = [&](int64_t step, TransformerImpl&) {
    poison.fill_(step == 5 ? std::nan("") : step == 7 ? std::numeric_limits<float>::max() : 0.0);
  };
  const RecordedRun run = expect_recorded_as_launched(c, kGpu);
  for (int64_t step = 0; step < c.steps; ++step) {
    const bool skipped = step == 5 || step == 7;
    EXPECT_EQ(run.results[static_cast<size_t>(step)][2].item<double>(), skipped ? 1 : 0) << step;
  }
  EXPECT_TRUE(std::isfinite(run.results[7][0].item<double>()));
  EXPECT_FALSE(std::isfinite(run.results[7][1].item<double>()));
  for (const Tensor& weight : run.weights) EXPECT_TRUE(weight.isfinite().all().item<bool>());
}

TEST(GpuRecordedStep, AParameterWrittenByHandIsHonoured) {
  FLASHSTEP_NEED_GPUS(1);
  for (const bool moved : {false, true}) {
    SCOPED_TRACE(moved);
    RecordedCase c;
    c.steps = 12;
    c.precision = Precision::kBFloat16;
    c.before_step = [&](int64_t step, TransformerImpl& model) {
      if (step != 6) return;
      const torch::NoGradGuard no_grad;
      Tensor weight = model.parameters()[2];
      moved ? weight.set_data(weight * 1.5) : static_cast<void>(weight.mul_(1.5));
    };
    const RecordedRun run = expect_recorded_as_launched(c, kGpu);
    const RecordedRun untouched = [&] {
      c.before_step = {};
      return train_recorded(c, GraphMode::kOff, kGpu);
    }();
    EXPECT_FALSE(testing::same_bits(run.results.back(), untouched.results.back()));
  }
}

// No step casts a block's weight: the one before has left its copy. (The head is autocast's here.)
TEST(GpuRecordedStep, AdamWLeavesTheCopiesOfWeights) {
  FLASHSTEP_NEED_GPUS(1);
  RecordedCase c;
  c.precision = Precision::kBFloat16;
  c.before_step = [](int64_t step, TransformerImpl& model) {
    if (step == 0) return;
    for (const auto& named : model.named_parameters()) {
      if (named.value().dim() < 2 || !named.key().starts_with("layers")) continue;
      EXPECT_TRUE(internal::copy_written_with(named.value()).defined())
          << step << ": " << named.key();
    }
  };
  expect_recorded_as_launched(c, kGpu);
}

TEST(GpuRecordedStep, RandomNumbersGoOn) {
  FLASHSTEP_NEED_GPUS(1);
  RecordedCase c;
  c.loss_hook = [](const Tensor& loss, TransformerImpl& model) {
    const Tensor weight = model.parameters()[1];
    return loss + 1e-3 * at::dropout(weight, 0.5, /*train=*/true).square().sum();
  };
  const RecordedRun run = expect_recorded_as_launched(c, kGpu);
  EXPECT_FALSE(testing::same_bits(run.results[7], run.results[8]));
}

TEST(GpuRecordedStep, AStepThatWaitsIsLaunched) {
  FLASHSTEP_NEED_GPUS(1);
  for (const bool in_backward : {false, true}) {
    for (const int64_t accumulation : {1, 3}) {
      SCOPED_TRACE(str(in_backward, " ", accumulation));
      RecordedCase c;
      c.accumulation_steps = accumulation;
      c.loss_hook = [&](const Tensor& loss, TransformerImpl& model) {
        // Draws, too: the generator shall not take itself for captured afterwards.
        const Tensor drawn = at::dropout(model.parameters()[1], 0.5, /*train=*/true).sum() * 1e-3;
        if (in_backward) return Waiting::apply(loss + drawn);
        return loss * (loss.item<double>() > 0 ? 1.0 : 2.0) + drawn;
      };
      const RecordedRun launched = train_recorded(c, GraphMode::kOff, kGpu);
      const RecordedRun run = train_recorded(c, GraphMode::kAuto, kGpu);
      EXPECT_FALSE(run.was_recorded);
      expect_same_runs(run, launched);
      ASSERT_EQ(run.said.size(), 1u);
      EXPECT_NE(run.said[0].find("captur"), std::string::npos) << run.said[0];
      EXPECT_NE(run.said[0].find("launched kernel by kernel"), std::string::npos) << run.said[0];
      EXPECT_THROW(train_recorded(c, GraphMode::kOn, kGpu), UserError);
      torch::cuda::synchronize();
    }
  }
  expect_recorded_as_launched(RecordedCase(), kGpu);  // nothing of it is left
}

// Evaluation and sampling between replays see the weights of their step, checkpoints save them, and
// a run that goes on from one records again.
class GpuLoop : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path run(const std::string& name, GraphMode graph, int64_t steps, bool resume = false) {
    be_deterministic();
    torch::manual_seed(7);
    Transformer model(recorded_model(), /*seed=*/3, kGpu);
    AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const ModelConfig sizes = recorded_model();
    const Tensor rows =
        torch::zeros({2, 3, sizes.context_length}, at::TensorOptions(kGpu).dtype(at::kLong));
    Job job{*model, optimizer,
            [&](int64_t, int64_t) { return cross_entropy(model->forward(rows[0]), rows[1]); }};
    job.stage = [&](int64_t step, int64_t micro_step) {
      const auto generator =
          at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * step + micro_step));
      rows.copy_(at::randint(sizes.vocab_size, rows.sizes(), generator, at::kLong));
    };
    job.learning_rate = [](int64_t t) { return 1e-3 * static_cast<double>(t); };
    job.held_out_loss = [&] {
      const torch::NoGradGuard no_grad;
      const Tensor ids = (at::arange(sizes.context_length, rows.options()) % 7).unsqueeze(0);
      return cross_entropy(model->forward(ids), ids).item<double>();
    };
    LoopOptions options;
    options.run_directory = folder_ / name;
    options.resume = resume;
    options.graph = graph;
    options.steps = steps;
    options.step = {.accumulation_steps = 2, .max_norm = 0.5, .precision = Precision::kBFloat16};
    options.evaluate_every = 2;
    options.checkpointing_interval = 5;
    options.quiet = true;
    flashstep::run(job, options);
    return options.run_directory;
  }

  // What does not depend on the clock.
  static std::vector<std::string> lines(const fs::path& directory) {
    std::vector<std::string> result;
    std::ifstream in(directory / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      auto json = nlohmann::json::parse(line);
      json.erase("step_ms");
      json.erase("tokens_per_s");
      result.push_back(json.dump());
    }
    return result;
  }

  const fs::path folder_ = fs::temp_directory_path() / str("flashstep_recorded_step_", ::getpid());
};

TEST_F(GpuLoop, EvaluatesSavesAndResumesBetweenReplays) {
  FLASHSTEP_NEED_GPUS(1);
  const auto launched = lines(run("launched", GraphMode::kOff, 14));
  EXPECT_EQ(launched.size(), 15u);
  EXPECT_EQ(lines(run("recorded", GraphMode::kOn, 14)), launched);
  run("resumed", GraphMode::kOn, 6);
  EXPECT_EQ(lines(run("resumed", GraphMode::kOn, 14, /*resume=*/true)), launched);
}

TEST_F(GpuLoop, GivesUpWhereItsLastStepsAreNotFinite) {
  FLASHSTEP_NEED_GPUS(1);
  Transformer model(recorded_model(), /*seed=*/3, kGpu);
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const Tensor row = torch::zeros({1, 8}, at::TensorOptions(kGpu).dtype(at::kLong));
  Job job{*model, optimizer,
          [&](int64_t step, int64_t) { return model->loss(row, row) * (step > 0 ? NAN : 1); }};
  LoopOptions options;
  options.run_directory = folder_;
  options.steps = 5;
  options.max_skipped_in_a_row = 4;
  options.quiet = true;
  EXPECT_NE(testing::refusal([&] { flashstep::run(job, options); }).find("in 4 steps in a row"),
            std::string::npos);
}

}  // namespace
}  // namespace flashstep
