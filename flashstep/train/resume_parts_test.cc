// Resuming in parts: what any number of ranks wrote, any other reads, bit for bit, and of weights
// and optimizer state each rank has no more in memory than its share and a tensor's.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/amp.h"
#include "flashstep/checkpoint.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/model.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/state_pieces.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/train/config.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/parts.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::same_bits;
using torch::Tensor;

fs::path parts_folder(const std::string& name) {
  const bool is_rank = testing::internal::call_of_rank() >= 0;
  return fs::temp_directory_path() /
         str("flashstep_resume_parts_", is_rank ? ::getppid() : ::getpid(), "_", name);
}

struct PartsBlock : torch::nn::Module {
  explicit PartsBlock(int64_t width) {
    register_parameter("w", torch::randn({width + 3, width}));
    register_parameter("turned", torch::randn({width, 5}).t());
    register_parameter("gain", torch::randn({width}));
  }
};

// Tied, with a buffer, and of sizes that no number of ranks divides.
struct PartsNet : torch::nn::Module {
  PartsNet(int64_t num_blocks, int64_t width) {
    const Tensor words = register_parameter("words", torch::randn({11, width}));
    register_parameter("head", words);
    register_buffer("seen", torch::randn({3}));
    const auto blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(std::make_shared<PartsBlock>(width));
  }
};

// A net and its optimizer after two steps, alone or fully sharded.
struct TrainedInParts {
  std::shared_ptr<PartsNet> net;
  std::unique_ptr<Group> group;  // null: one process
  std::unique_ptr<FullyShardedDataParallel<PartsNet>> sharded;
  std::unique_ptr<AdamW> optimizer;

  TrainedInParts(const Environment& environment, at::ScalarType dtype, int64_t num_blocks = 2,
                 int64_t width = 7)
      : net(std::make_shared<PartsNet>(num_blocks, width)) {
    if (dtype != at::kFloat) keep_weights_in(dtype, net->parameters());
    if (environment.world_size > 1) {
      group = std::make_unique<Group>(environment);
      sharded = std::make_unique<FullyShardedDataParallel<PartsNet>>(net, *group);
    }
    optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(0.1));
    optimizer->keep_moments_in(dtype);
  }
  void train() {
    for (int step = 0; step < 2; ++step) {
      for (const Tensor& parameter : net->parameters())
        parameter.mutable_grad() = torch::randn_like(parameter);
      optimizer->step();
    }
    optimizer->zero_grad();
  }
  ModelRef model() { return sharded ? ModelRef(*sharded) : ModelRef(*net); }
};

void expect_same_named(NamedTensors actual, NamedTensors expected) {
  std::ranges::sort(actual, {}, &NamedTensors::value_type::first);
  std::ranges::sort(expected, {}, &NamedTensors::value_type::first);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_TRUE(same_bits(actual[i].second.contiguous(), expected[i].second.contiguous()))
        << actual[i].first;
  }
}

TEST(ResumeInParts, AnyNumberOfRanksReadsWhatAnyWrote) {
  constexpr std::pair<const char*, at::ScalarType> kTypes[] = {{"fp32", at::kFloat},
                                                               {"bf16", at::kBFloat16}};
  for (const int ranks : {1, 2, 3}) {
    testing::run_ranks(ranks, [&](const Environment& environment) {
      for (const auto& [name, dtype] : kTypes) {
        TrainedInParts written(environment, dtype);
        // Every rank has its own moments; what is not divided has rank 0's.
        written.train();
        save(parts_folder(str(name, ranks)), written.model(), *written.optimizer, 2);
      }
    });
  }
  for (const auto& [from, to] : {std::pair{2, 2}, {2, 3}, {3, 2}, {1, 3}, {3, 1}}) {
    SCOPED_TRACE(str(from, " to ", to));
    testing::run_ranks(to, [from = from, to = to, &kTypes](const Environment& environment) {
      for (const auto& [name, dtype] : kTypes) {
        const fs::path before = parts_folder(str(name, from)),
                       after = parts_folder(str(name, from, to));
        TrainedInParts read(environment, dtype);
        EXPECT_EQ(load_if_exists(before, read.model(), *read.optimizer), 2);
        save(after, read.model(), *read.optimizer, 2);
        if (environment.rank == 0) {
          const Checkpoint expected = load_newest(before, nullptr).value(),
                           actual = load_newest(after, nullptr).value();
          expect_same_named(actual.model, expected.model);
          const NamedTensors whole = module_tensors(PartsNet(2, 7));
          expect_same_named(join_pieces(actual.optimizer, whole),
                            join_pieces(expected.optimizer, whole));
        }
      }
    });
  }
  if (testing::internal::call_of_rank() >= 0) return;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path())) {
    const std::string own = parts_folder("").filename().string();
    if (entry.path().filename().string().starts_with(own)) fs::remove_all(entry);
  }
}

int64_t nbytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// On a disk that all ranks see, and on one that only rank 0 sees, which sends a part at a time.
TEST(ResumeInParts, MemoryHoldsARanksShare) {
  testing::run_ranks(3, [](const Environment& environment) {
    constexpr int64_t kBlocks = 36, kWidth = 250;
    const int64_t matrix_bytes = (kWidth + 3) * kWidth * 4;
    const fs::path place = parts_folder("memory"), own = place / std::to_string(environment.rank);
    if (environment.rank == 0) fs::remove_all(place);
    {
      TrainedInParts written(environment, at::kFloat, kBlocks, kWidth);
      written.train();
      save(place / "0", written.model(), *written.optimizer, 2);
    }
    fs::create_directories(own);
    fs::current_path(own);
    for (const fs::path& directory : {place / "0", fs::path("/proc/self/cwd")}) {
      SCOPED_TRACE(directory.string());
      TrainedInParts read(environment, at::kFloat, kBlocks, kWidth);
      const int64_t share = nbytes_of(read.net->parameters());
      const measure::AllocatedBytes allocated;
      EXPECT_EQ(load_if_exists(directory, read.model(), *read.optimizer), 2);
      const bool sends = directory != place / "0";
      const int64_t beside = (sends ? 8 : 2) * matrix_bytes;
      // The moments stay. Beside them there is one tensor; on its way, its messages, too.
      EXPECT_LE(allocated.peak(), 2 * share + beside);
      EXPECT_LT(2 * share + beside, 3 * share) << "whole weights, on a rank, have to be too much";
    }
    fs::current_path("/");
    Group(environment).barrier();
    if (environment.rank == 0) fs::remove_all(place);
  });
}

// Weights that a new model begins with: each rank reads its shards' elements.
TEST(ResumeInParts, InitialWeightsAreReadByShard) {
  testing::run_ranks(3, [](const Environment& environment) {
    Group group(environment);
    Config config;
    config.model.vocab_size = 37;
    config.model.context_length = 8;
    config.model.num_layers = 2;
    config.model.d_model = 10;
    config.model.num_heads = 1;
    config.model.d_ff = 13;
    config.parallel.shard_optimizer = "full";
    config.train.init_from = "a test";
    const fs::path file = parts_folder("init") / "weights.safetensors";
    const Transformer source(config.model, 7);
    if (group.is_first()) {
      fs::create_directories(file.parent_path());
      write_safetensors(file, module_tensors(*source));
    }
    group.barrier();
    for (const std::string dtype : {"fp32", "bf16"}) {
      config.train.weights = dtype;
      StoredTensors stored =
          share_tensors(group.is_first() ? open_tensors({file}) : TensorFiles(), &group).tensors;
      int64_t elements = 0;
      for (StoredTensor& tensor : stored) {
        tensor.read = [&elements, read = tensor.read](int64_t begin, int64_t end) {
          elements += end - begin;
          return read(begin, end);
        };
      }
      const TrainedParts parts = make_parts(config, at::kCPU, &group, stored);
      int64_t own = 0;
      for (const Tensor& parameter : parts.model->parameters()) own += parameter.numel();
      EXPECT_EQ(elements, own);
      NamedTensors expected;
      for (const auto& [name, tensor] : module_tensors(*source)) {  // gains stay float32
        const bool is_narrow = dtype == "bf16" && tensor.dim() > 1;
        expected.emplace_back(name, tensor.detach().to(is_narrow ? at::kBFloat16 : at::kFloat));
      }
      expect_same_named(parts.parallel->units()->gather(), expected);
    }
    config.model.d_ff = 14;
    EXPECT_THROW(make_parts(config, at::kCPU, &group, open_tensors({file}).tensors), UserError);
    group.barrier();
    if (group.is_first()) fs::remove_all(file.parent_path());
  });
}

}  // namespace
}  // namespace flashstep
