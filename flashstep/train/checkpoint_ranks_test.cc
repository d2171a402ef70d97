// Checkpoints that ranks write and read together: disks of their own, and failures on one of them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/testing/full_disk.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/train/checkpoint_in_writing.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// Every rank's own folder under one path for all, as a disk of each machine: a rank's folder is
// where it works.
const fs::path kOwnDisk = "/proc/self/cwd/checkpoints";

class Disks {
 public:
  Disks(const std::string& test, const Group& group) : group_(group) {
    const std::string parent = std::to_string(::getppid());  // of all ranks
    base_ = fs::temp_directory_path() / ("checkpoint_ranks_test_" + parent) / test;
    if (group.is_first()) fs::remove_all(base_);
    group.barrier();
    fs::create_directories(of(group.rank()));
    fs::current_path(of(group.rank()));
    group.barrier();
  }
  ~Disks() {
    fs::current_path("/");
    if (group_.is_first()) fs::remove_all(base_.parent_path());
  }
  fs::path of(int rank) const { return base_ / std::to_string(rank); }

 private:
  const Group& group_;
  fs::path base_;
};

Checkpoint checkpoint_of(const Group& group, int64_t step) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model = {{"w", torch::full({6}, static_cast<double>(step))}};
  checkpoint.optimizer = {
      {str("of_rank_", group.rank()), torch::full({2000}, static_cast<double>(group.rank()))}};
  return checkpoint;
}

// The newest on rank 0's disk, with every rank's tensors; the other ranks wait.
void expect_whole_checkpoint(const fs::path& checkpoints, int64_t step, const Group& group) {
  if (group.is_first()) {
    const Checkpoint read = load_checkpoint(checkpoint_directory(checkpoints, step));
    EXPECT_EQ(read.optimizer.size(), static_cast<size_t>(group.world_size()));
    int rank = 0;
    for (const auto& [name, tensor] : read.optimizer) {
      EXPECT_EQ(name, str("of_rank_", rank));
      EXPECT_TRUE((tensor == rank++).all().item<bool>()) << name;
    }
  }
  group.barrier();
}

std::string unfinished(int64_t step) {
  return checkpoint_directory("", step).string() + ".unfinished";
}

// What an earlier job left on rank 1's machine bears the name of rank 0's directory.
TEST(ShardedCheckpoint, ADirectoryOfTheSameNameIsNotRankZeros) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const Disks disks("stale", group);
    const fs::path stale = disks.of(1) / "checkpoints" / unfinished(5);
    if (group.rank() == 1) {
      fs::create_directories(stale);
      for (const char* name : {"model.safetensors", "word_of_rank_0"}) std::ofstream(stale / name);
    }
    save_checkpoint(kOwnDisk, checkpoint_of(group, 5), 2, &group);
    expect_whole_checkpoint(kOwnDisk, 5, group);
    if (group.is_first()) {
      const fs::path written = checkpoint_directory(kOwnDisk, 5);
      EXPECT_TRUE(fs::exists(written / "optimizer.00000-of-00003.safetensors"));
      EXPECT_TRUE(fs::exists(written / "optimizer.others.safetensors"));
      EXPECT_FALSE(fs::exists(written / "word_of_rank_0"));
    }
    if (group.rank() == 1) {
      EXPECT_FALSE(fs::exists(stale / "optimizer.00001-of-00003.safetensors"));
    }
    group.barrier();
  });
}

// Rank 1 sees the word, but what it writes does not come to where rank 0 looks.
TEST(ShardedCheckpoint, AShareThatDoesNotArriveIsMissed) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Disks disks("lost", group);
    if (group.rank() == 1) {
      const fs::path mine = disks.of(1) / "checkpoints" / unfinished(5);
      fs::create_directories(mine);
      fs::create_symlink(disks.of(0) / "checkpoints" / unfinished(5) / "word_of_rank_0",
                         mine / "word_of_rank_0");
    }
    try {
      save_checkpoint(kOwnDisk, checkpoint_of(group, 5), 2, &group);
      ADD_FAILURE() << "expected MachineError";
    } catch (const MachineError& error) {
      EXPECT_NE(std::string(error.what()).find("optimizer.00001-of-00002"), std::string::npos)
          << error.what();
    }
    if (group.is_first()) {
      EXPECT_TRUE(list_checkpoints(kOwnDisk).empty());
    }
    group.barrier();
  });
}

// All ranks throw, the older checkpoint stays, and all can go on.
void expect_failure(const char* what, const fs::path& checkpoints, const Checkpoint& checkpoint,
                    const Group& group) {
  SCOPED_TRACE(what);
  EXPECT_THROW(save_checkpoint(checkpoints, checkpoint, 1, &group), MachineError);
  expect_whole_checkpoint(checkpoints, 1, group);
}

TEST(ShardedCheckpoint, EveryFailureReachesEveryRank) {
  testing::run_ranks(2, [](const Environment& environment) {
    GroupOptions options;
    options.timeouts.collective = std::chrono::seconds(20);  // what waits in vain
    const Group group(environment, options);
    const Disks disks("failures", group);
    const fs::path shared = disks.of(0) / "checkpoints";
    save_checkpoint(shared, checkpoint_of(group, 1), 1, &group);
    expect_whole_checkpoint(shared, 1, group);

    // Before the shares: rank 0 has no room for the model.
    {
      std::optional<testing::FullDisk> full;
      if (group.is_first()) full.emplace(64);
      expect_failure("model", shared, checkpoint_of(group, 2), group);
    }
    // A share: no room, or a type that files do not know.
    {
      std::optional<testing::FullDisk> full;
      if (group.rank() == 1) full.emplace(4096);
      expect_failure("share", shared, checkpoint_of(group, 2), group);
    }
    Checkpoint complex = checkpoint_of(group, 2);
    if (group.rank() == 1) complex.optimizer[0].second = torch::ones({2}, torch::kComplexDouble);
    expect_failure("type", shared, complex, group);

    // After the shares, on rank 0 alone: no room for state.json, nothing there any more to be given
    // its name, or not where rank 0, which has moved, looks for it by a relative name.
    for (const std::string what : {"state.json", "gone", "moved"}) {
      SCOPED_TRACE(what);
      const fs::path place = group.is_first() && what == "moved" ? "checkpoints" : shared;
      CheckpointInWriting saving(place, checkpoint_of(group, 2), 1, &group,
                                 /*in_background=*/false);
      group.barrier();
      std::optional<testing::FullDisk> full;
      if (group.is_first()) {
        if (what == "state.json") full.emplace(16);
        if (what == "gone") fs::remove_all(shared / unfinished(2));
        if (what == "moved") fs::current_path("/");
      }
      EXPECT_THROW(saving.finish(), MachineError);
      fs::current_path(disks.of(group.rank()));
      expect_whole_checkpoint(shared, 1, group);
    }

    // What is somebody else's and has the name makes room, and stays.
    const fs::path taken = checkpoint_directory(shared, 2);
    if (group.is_first()) {
      fs::create_directories(taken / "mine");
      fs::create_directories(fs::path(taken) += ".replaced/more");
    }
    group.barrier();
    save_checkpoint(shared, checkpoint_of(group, 2), 1, &group);
    expect_whole_checkpoint(shared, 2, group);
    EXPECT_TRUE(fs::exists(fs::path(taken) += "-2.replaced/mine"));
    EXPECT_TRUE(fs::exists(fs::path(taken) += ".replaced/more"));
    group.barrier();
    save_checkpoint(shared, checkpoint_of(group, 3), 1, &group);
    expect_whole_checkpoint(shared, 3, group);
  });
}

// Ranks go on beside their writing, and are done at different times; one that fails, too.
TEST(ShardedCheckpoint, RanksGoOnWhileTheyWrite) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const Disks disks("background", group);
    const fs::path shared = disks.of(0) / "checkpoints";
    // One disk, one for each, and one that is full.
    for (const int64_t step : {1, 2, 3}) {
      std::optional<testing::FullDisk> full;
      if (step == 3 && group.rank() == 1) full.emplace(4096);
      const fs::path& place = step == 2 ? kOwnDisk : shared;
      Checkpoint checkpoint = checkpoint_of(group, step);
      const torch::Tensor trained = checkpoint.optimizer[0].second;
      CheckpointInWriting saving(place, std::move(checkpoint), 3, &group, /*in_background=*/true);
      trained.fill_(-1);
      EXPECT_EQ(group.all_reduce(group.rank(), Reduce::kMax), 2) << "messages between";
      if (step == 3) {
        EXPECT_THROW(saving.finish(), MachineError);
      } else {
        saving.finish();
      }
      expect_whole_checkpoint(place, std::min<int64_t>(step, 2), group);
    }
  });
}

// What is wrong with rank 0's own call is the others' error as well.
TEST(ShardedCheckpoint, AMistakeOfRankZeroIsToldToo) {
  testing::run_ranks(2, [](const Environment& environment) {
    GroupOptions options;
    options.timeouts.collective = std::chrono::seconds(20);
    const Group group(environment, options);
    const Disks disks("mistake", group);
    const auto save = [&] {
      save_checkpoint(kOwnDisk, checkpoint_of(group, 1), /*keep=*/-1, &group);
    };
    EXPECT_THROW(save(), UserError);
    group.barrier();
  });
}

// The part of each tensor that a rank asks for, and the sum of what it got.
void expect_parts(const StoredTensors& stored, const Group& group) {
  for (const StoredTensor& tensor : stored) {
    const int64_t numel = tensor.form.numel(), begin = numel * group.rank() / 3;
    const torch::Tensor part = tensor.read(begin, numel - 1);
    EXPECT_TRUE(part.equal(torch::arange(begin, numel - 1, torch::kFloat))) << tensor.name;
    EXPECT_EQ(tensor.read(numel, numel).numel(), 0);
    const torch::Tensor whole = tensor.whole();
    EXPECT_EQ(whole.sizes(), tensor.form.sizes());
    EXPECT_TRUE(whole.view({-1}).equal(torch::arange(static_cast<double>(numel), torch::kFloat)));
  }
}

// On one disk, and where ranks do not see that of rank 0, not even by another's name for it.
TEST(ShareCheckpoint, EveryRankReadsItsParts) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const Disks disks("share", group);
    EXPECT_FALSE(share_checkpoint(std::nullopt, &group).has_value());
    const auto values = [](int64_t rows, int64_t columns) {
      return torch::arange(static_cast<double>(rows * columns), torch::kFloat)
          .view({rows, columns});
    };
    Checkpoint checkpoint{3, {{"v", values(2, 3)}, {"w", values(7, 5)}}, {}, "{\"a\":1}"};
    checkpoint.optimizer = {{"w/m", values(7, 5)}};
    save_checkpoint(kOwnDisk, checkpoint, 1);  // of the same bytes on all
    for (const fs::path& place : {disks.of(0) / "checkpoints", kOwnDisk}) {
      SCOPED_TRACE(place.string());
      const bool sees = place != kOwnDisk;
      std::optional<StoredCheckpoint> stored;
      if (group.is_first()) stored = open_newest(place, nullptr);
      stored = share_checkpoint(std::move(stored), &group);
      ASSERT_TRUE(stored.has_value());
      EXPECT_EQ(stored->step, 3);
      EXPECT_EQ(stored->state_json, "{\"a\":1}");
      ASSERT_EQ(stored->model.tensors.size(), 2u);
      ASSERT_EQ(stored->optimizer.tensors.size(), 1u);
      // Its own files, or none.
      if (!group.is_first()) {
        EXPECT_EQ(stored->model.paths.size(), sees ? 1u : 0u);
      }
      expect_parts(stored->model.tensors, group);
      expect_parts(stored->optimizer.tensors, group);
    }
  });
}

}  // namespace
}  // namespace flashstep
