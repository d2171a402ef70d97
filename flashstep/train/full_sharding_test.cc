// The Transformer trained with shard_optimizer full against the same with none: what a checkpoint
// holds, and what a rank keeps.
#include <algorithm>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/loop.h"
#include "flashstep/model.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/state_pieces.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

// `divides`: two shards of a matrix are whole vectors, of which an update rounds every element
// alike; else no number of ranks divides the matrices.
ModelConfig small_model(bool divides) {
  ModelConfig config;
  config.vocab_size = divides ? 64 : 37;
  config.context_length = 8;
  config.num_layers = 3;
  config.d_model = divides ? 16 : 10;
  config.num_heads = 1;
  config.d_ff = divides ? 32 : 13;
  return config;
}

struct FullShardingRun {
  fs::path directory;
  std::string shards;
  Precision precision = Precision::kFloat32;
  Recompute recompute = Recompute::kNone;
  int64_t steps = 5;
  bool resume = false;
  bool divides = false;
  bool update_in_backward = false;
  int shard_ranks = 0;
  bool is_tied = false;  // and of grouped queries

  ModelConfig config() const {
    ModelConfig config = small_model(divides);
    config.tie_embeddings = is_tied;
    if (is_tied) config.num_heads = divides ? 4 : 5;
    if (is_tied) config.num_kv_heads = divides ? 2 : 1;
    return config;
  }

  // Returns the held-out loss after the last step.
  double run(Group& group) const {
    Transformer model(config(), 5 + static_cast<uint64_t>(group.rank()));
    model->set_recompute(recompute, 2);
    ParallelConfig parallel;
    parallel.shard_optimizer = shards;
    parallel.shard_ranks = shard_ranks;
    const auto ranks = parallelize(*model, parallel, &group);
    const auto optimizer =
        make_optimizer(*model, torch::optim::AdamWOptions(1e-2), parallel, *ranks);
    Job job{*model, *optimizer, [&](int64_t step, int64_t /*micro_step*/) {
              const Tensor ids = tokens(2, 100 * step + group.rank());
              return model->loss(ids.slice(1, 0, 8), ids.slice(1, 1, 9));
            }};
    job.parallel = ranks;
    const Tensor held_out = tokens(3, 9999);
    const auto logits = [&] {
      const torch::NoGradGuard no_grad;
      return ranks->call([&] { return model->forward(held_out.slice(1, 0, 8)); });
    };
    job.held_out_loss = [&] {
      return cross_entropy(logits(), held_out.slice(1, 1, 9)).item<double>();
    };
    job.evaluates_together = true;
    LoopOptions options;
    options.run_directory = directory;
    options.steps = steps;
    options.resume = resume;
    options.step.precision = precision;
    options.step.update_in_backward = update_in_backward;
    options.quiet = true;
    const double loss = flashstep::run(job, options).held_out_loss;
    if (ranks->units() != nullptr) expect_shards(*model, *ranks);
    return loss;
  }

  Tensor tokens(int64_t rows, int64_t seed) const {
    torch::manual_seed(seed);
    return torch::randint(config().vocab_size, {rows, 9}, at::kLong);
  }

  // Between steps nothing is whole, and a rank has about its share.
  void expect_shards(const TransformerImpl& model, const Parallelism& ranks) const {
    EXPECT_EQ(ranks.units()->gathered_bytes(), 0);
    int64_t own = 0, all = 0, matrices = 0;
    for (const auto& [name, tensor] : module_tensors(model)) own += tensor.numel();
    for (const auto& [name, whole] : whole_tensors(model, ranks)) {
      all += whole.numel();
      matrices += whole.dim() >= 2 ? 1 : 0;
    }
    const int64_t small = 7 * config().d_model;  // norms, which every rank has
    const int64_t divided_by = shard_ranks > 0 ? shard_ranks : ranks.world_size();
    EXPECT_LE(own, (all - small) / divided_by + 4 * matrices + small);
  }

  // Its weights in the order of their names, whoever wrote them.
  Checkpoint saved() const {
    Checkpoint checkpoint =
        load_newest(directory / "checkpoints", [](const std::string&) {}).value();
    std::ranges::sort(checkpoint.model, {}, &NamedTensors::value_type::first);
    return checkpoint;
  }
};

fs::path full_sharding_folder(const std::string& name) {
  return fs::temp_directory_path() / str("flashstep_full_sharding_", ::getppid(), "_", name);
}

void expect_same_tensors(const NamedTensors& actual, const NamedTensors& expected,
                         double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    ASSERT_EQ(actual[i].second.sizes(), expected[i].second.sizes()) << actual[i].first;
    const double difference = (actual[i].second - expected[i].second).abs().max().item<double>();
    EXPECT_TRUE(difference <= tolerance) << actual[i].first << ": " << difference;
  }
}

void expect_same_checkpoints(const Checkpoint& actual, const Checkpoint& expected,
                             double tolerance) {
  expect_same_tensors(actual.model, expected.model, tolerance);
  expect_same_tensors(join_pieces(actual.optimizer, actual.model),
                      join_pieces(expected.optimizer, expected.model), tolerance);
}

// Two ranks' means are the same bits in every mode, and so are the files.
TEST(FullSharding, CheckpointsAreThoseOfNone) {
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      Group group(environment);
      const fs::path base = full_sharding_folder("equal");
      if (group.is_first()) fs::remove_all(base);
      group.barrier();
      const double tolerance = group.world_size() == 2 ? 0 : 1e-4;
      for (const auto& [precision, recompute, is_tied] :
           {std::tuple{Precision::kFloat32, Recompute::kNone, false},
            std::tuple{Precision::kFloat32, Recompute::kBlock, false},
            std::tuple{Precision::kFloat32, Recompute::kNone, true},
            std::tuple{Precision::kBFloat16, Recompute::kNone, false}}) {
        const bool is_short = precision == Precision::kBFloat16;
        const std::string name =
            str(is_short ? "bf16" : "fp32", static_cast<int>(recompute), is_tied ? "tied" : "");
        SCOPED_TRACE(name);
        FullShardingRun none{base / (name + "_none"), "none", precision, recompute};
        FullShardingRun full{base / (name + "_full"), "full", precision, recompute};
        none.divides = full.divides = group.world_size() == 2;
        none.is_tied = full.is_tied = is_tied;
        const double expected = none.run(group), loss = full.run(group);
        if (!group.is_first()) continue;
        EXPECT_NEAR(loss, expected, is_short ? 1e-2 : 1e-5);
        if (is_short && tolerance > 0) continue;  // roundings of bf16 differ between orders of sums
        expect_same_checkpoints(full.saved(), none.saved(), tolerance);
        // Every rank wrote about as much.
        const fs::path files = full.directory / "checkpoints/step_00000005";
        EXPECT_FALSE(fs::exists(files / "model.safetensors"));
        const int ranks = group.world_size();
        for (int rank = 0; rank < ranks; ++rank) {
          const fs::path file = files / str("model.0000", rank, "-of-0000", ranks, ".safetensors");
          testing::expect_sentence([&] { open_weights(file, {}); },
                                   {str("one of the ", ranks, " files"), "name the checkpoint"});
          EXPECT_GE(fs::file_size(file) * static_cast<size_t>(ranks) * 3,
                    fs::file_size(none.directory / "checkpoints/step_00000005/model.safetensors"));
        }
      }
      group.barrier();
      if (group.is_first()) fs::remove_all(base);
    });
  }
}

// The first half of the steps, resumed with updates in backward.
TEST(FullSharding, UpdatesInBackward) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    const fs::path base = full_sharding_folder("in_backward");
    if (group.is_first()) fs::remove_all(base);
    group.barrier();
    const FullShardingRun after{base / "after", "full"};
    FullShardingRun in{base / "in", "full"};
    in.steps = 2;
    in.run(group);
    in.steps = after.steps;
    in.resume = in.update_in_backward = true;
    const double got = in.run(group), expected = after.run(group);
    if (group.is_first()) {
      EXPECT_EQ(got, expected);
      expect_same_checkpoints(in.saved(), after.saved(), 0);
    }
    group.barrier();
    FullShardingRun none{base / "none", "none"};
    none.update_in_backward = true;
    testing::expect_sentence(
        [&] { none.run(group); },
        {"expected one process, or parallel.shard_optimizer full", "got 2 processes"});
    group.barrier();
    if (group.is_first()) fs::remove_all(base);
  });
}

TEST(FullSharding, ResumedIsNeverStopped) {
  for (const auto& [world_size, shard_ranks] : {std::pair{2, 0}, {3, 0}, {4, 2}}) {
    testing::run_ranks(world_size, [shard_ranks = shard_ranks](const Environment& environment) {
      Group group(environment);
      const fs::path base = full_sharding_folder("resume");
      if (group.is_first()) fs::remove_all(base);
      group.barrier();
      FullShardingRun whole{base / "whole", "full"};
      FullShardingRun part{base / "part", "full"};
      whole.shard_ranks = part.shard_ranks = shard_ranks;
      part.steps = 3;
      part.run(group);
      part.steps = whole.steps;
      part.resume = true;
      const double resumed = part.run(group), expected = whole.run(group);
      if (group.is_first()) {
        EXPECT_EQ(resumed, expected);
        expect_same_checkpoints(part.saved(), whole.saved(), 0);
      }
      group.barrier();
      if (group.is_first()) fs::remove_all(base);
    });
  }
}

// Two replicas of two ranks go on from what others have written, and others from what they have.
TEST(FullSharding, ReplicasAreResumedByOthers) {
  struct Layout {
    int shard_ranks;
    const char* shards;
  };
  const std::pair<Layout, Layout> cases[] = {{{2, "full"}, {0, "full"}},
                                             {{0, "full"}, {2, "full"}},
                                             {{2, "full"}, {1, "full"}},
                                             {{2, "full"}, {0, "none"}},
                                             {{0, "none"}, {2, "full"}}};
  testing::run_ranks(4, [&](const Environment& environment) {
    Group group(environment);
    const fs::path base = full_sharding_folder("replicas");
    if (group.is_first()) fs::remove_all(base);
    group.barrier();
    const FullShardingRun whole{base / "whole", "none"};
    const double expected = whole.run(group);
    for (const auto& [before, after] : cases) {
      SCOPED_TRACE(str(before.shards, before.shard_ranks, " to ", after.shards, after.shard_ranks));
      FullShardingRun part{
          base / str(before.shards, before.shard_ranks, after.shards, after.shard_ranks),
          before.shards};
      part.steps = 3;
      part.shard_ranks = before.shard_ranks;
      part.run(group);
      const fs::path files = part.directory / "checkpoints/step_00000003";
      if (group.is_first() && before.shard_ranks == 2) {
        for (const std::string name : {"model", "optimizer"}) {
          EXPECT_TRUE(fs::exists(files / (name + ".00001-of-00004.safetensors")));
          EXPECT_FALSE(fs::exists(files / (name + ".00002-of-00004.safetensors")))
              << "the second replica has nothing to add";
        }
      }
      part.steps = whole.steps;
      part.resume = true;
      part.shards = after.shards;
      part.shard_ranks = after.shard_ranks;
      const double resumed = part.run(group);
      if (!group.is_first()) continue;
      EXPECT_NEAR(resumed, expected, 1e-5);
      expect_same_checkpoints(part.saved(), whole.saved(), 1e-4);
    }
    group.barrier();
    if (group.is_first()) fs::remove_all(base);
  });
}

}  // namespace
}  // namespace flashstep
