#include "flashstep/checkpoint.h"

#include <fstream>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_in_writing.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : root_(fs::path(::testing::TempDir()) / str("checkpoint_test_", ::getpid())),
        checkpoints_(root_ / "checkpoints") {}
  ~CheckpointTest() override { fs::remove_all(root_); }

  static Checkpoint make(int64_t step) {
    const at::Tensor value = torch::full({3, 5}, static_cast<double>(step));
    return {step, {{"w", value}}, {{"w.exp_avg", value * 2}}, str("{\"seed\":", step, "}")};
  }
  void save(int64_t step, int64_t keep = 3) { save_checkpoint(checkpoints_, make(step), keep); }
  fs::path file(int64_t step, const char* name) const {
    return checkpoint_directory(checkpoints_, step) / name;
  }
  static void flip_byte(const fs::path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }
  // The step that load_newest finds; -1 for none.
  int64_t newest() {
    warnings_.clear();
    const auto found =
        load_newest(checkpoints_, [&](const std::string& text) { warnings_.push_back(text); });
    if (!found) return -1;
    EXPECT_TRUE(torch::equal(found->model.at(0).second, make(found->step).model.at(0).second));
    return found->step;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path root_, checkpoints_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointTest, ComesBackAsItWas) {
  EXPECT_EQ(newest(), -1);
  prepare_checkpoints(checkpoints_);
  EXPECT_EQ(newest(), -1);
  save(100);
  EXPECT_EQ(checkpoint_directory(checkpoints_, 100).filename(), "step_00000100");
  for (const Checkpoint& read : {load_checkpoint(checkpoint_directory(checkpoints_, 100)),
                                 *load_newest(checkpoints_, nullptr)}) {
    EXPECT_EQ(read.step, 100);
    EXPECT_EQ(read.state_json, "{\"seed\":100}");
    ASSERT_EQ(read.optimizer.size(), 1u);
    EXPECT_EQ(read.optimizer[0].first, "w.exp_avg");
    EXPECT_TRUE(torch::equal(read.optimizer[0].second, make(100).optimizer[0].second));
  }
  EXPECT_THROW(load_checkpoint(checkpoint_directory(checkpoints_, 99)), UserError);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (const int64_t step : {1, 2, 10, 100}) save(step, 2);
  EXPECT_EQ(list_checkpoints(checkpoints_), (std::vector<int64_t>{10, 100}));
  save(101, 0);
  EXPECT_EQ(list_checkpoints(checkpoints_), (std::vector<int64_t>{10, 100, 101}));
  save(123456789, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_123456789"}));
  EXPECT_EQ(newest(), 123456789);
}

TEST_F(CheckpointTest, ADamagedFileIsNamedAndTheCheckpointBeforeUsed) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    save(1), save(2);
    const fs::path damaged = file(2, name);
    const auto size = static_cast<int64_t>(fs::file_size(damaged));
    for (const int64_t offset : {int64_t{0}, size / 2, size - 1}) {
      flip_byte(damaged, offset);
      EXPECT_EQ(newest(), 1) << name << " at " << offset;
      ASSERT_EQ(warnings_.size(), 1u);
      EXPECT_NE(warnings_[0].find(damaged.string()), std::string::npos) << warnings_[0];
      flip_byte(damaged, offset);
    }
    EXPECT_EQ(newest(), 2);
    fs::resize_file(damaged, static_cast<uintmax_t>(size - 1));
    EXPECT_EQ(newest(), 1) << name;
    fs::remove(damaged);
    EXPECT_EQ(newest(), 1) << name;
    EXPECT_NE(warnings_.at(0).find(name), std::string::npos) << warnings_[0];
    fs::remove_all(checkpoints_);
  }
}

TEST_F(CheckpointTest, DamagedOnesOnlyAreAnErrorNotANewStart) {
  save(1);
  flip_byte(file(1, "model.safetensors"), 70);
  EXPECT_THROW(newest(), UserError);
}

TEST_F(CheckpointTest, ACheckpointUnderAnothersNameIsRefused) {
  save(1);
  fs::rename(checkpoint_directory(checkpoints_, 1), checkpoint_directory(checkpoints_, 2));
  EXPECT_THROW(load_checkpoint(checkpoint_directory(checkpoints_, 2)), UserError);
}

TEST_F(CheckpointTest, WhatAKilledProcessLeftIsCleared) {
  save(1);
  fs::create_directories(checkpoints_ / "step_00000002.unfinished");
  std::ofstream(checkpoints_ / "step_00000002.unfinished" / "model.safetensors") << "half";
  EXPECT_EQ(newest(), 1);
  EXPECT_TRUE(warnings_.empty());
  save(2);  // also when nobody prepared
  EXPECT_EQ(newest(), 2);
  fs::rename(checkpoint_directory(checkpoints_, 2), checkpoints_ / "step_00000002.replaced");
  fs::create_directories(checkpoints_ / "step_00000003.unfinished");
  prepare_checkpoints(checkpoints_);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000002"}));
  fs::create_directories(checkpoints_ / "step_00000002.replaced");
  prepare_checkpoints(checkpoints_);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000002"}));
  EXPECT_EQ(newest(), 2);
}

TEST_F(CheckpointTest, TheSameStepIsReplaced) {
  save(1);
  Checkpoint other = make(1);
  other.state_json = "{\"seed\":2}";
  save_checkpoint(checkpoints_, other, 1);
  EXPECT_EQ(load_checkpoint(checkpoint_directory(checkpoints_, 1)).state_json, "{\"seed\":2}");
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001"}));
}

TEST_F(CheckpointTest, AFutureThatWasGivenUpDoesNotComeBack) {
  for (const int64_t step : {1, 2, 3}) save(step);
  discard_after(checkpoints_, 1);
  EXPECT_EQ(newest(), 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000002.discarded",
                                               "step_00000003.discarded"}));
  save(2, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000002"}));
  save(5);
  flip_byte(file(5, "state.json"), 3);
  save(3, 1);  // keep counts what can be used
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000003", "step_00000005.damaged"}));
}

TEST_F(CheckpointTest, DamagedOnesStayUnderAnotherName) {
  for (int i = 0; i < 2; ++i) {  // the name is taken the second time
    save(1), save(2);
    flip_byte(file(2, "model.safetensors"), 70);
    EXPECT_EQ(newest(), 1);
    discard_after(checkpoints_, 1);
    save(3, 1);
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000002-2.damaged", "step_00000002.damaged",
                                               "step_00000003"}));
}

TEST_F(CheckpointTest, WhatCannotBeReadForTheMomentIsNotDamaged) {
  save(1), save(2);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    fs::permissions(file(2, name), fs::perms::none);
    const auto other_user = ::setfsuid(65534);  // root may read all
    EXPECT_THROW(newest(), UserError) << name;
    EXPECT_THROW(load_weights(root_, nullptr), UserError) << name;
    ::setfsuid(static_cast<uid_t>(other_user));
    EXPECT_TRUE(warnings_.empty());
    fs::permissions(file(2, name), fs::perms::owner_all);
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const rlimit none{0, files.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_THROW(newest(), MachineError);
  ::setrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(newest(), 2);
}

TEST_F(CheckpointTest, OtherFilesInTheDirectoryAreLeftAlone) {
  fs::create_directories(checkpoints_ / "step_1");
  fs::create_directories(checkpoints_ / "step_0000000x");
  fs::create_directories(checkpoints_ / "step_-0000001");
  std::ofstream(checkpoints_ / "notes.txt") << "mine";
  prepare_checkpoints(checkpoints_);
  save(1, 1), save(2, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"notes.txt", "step_-0000001", "step_00000002",
                                               "step_0000000x", "step_1"}));
}

// In every directory that is renamed or removed somebody has put a file.
TEST_F(CheckpointTest, NoDirectoryWithFilesOfOthersIsRemoved) {
  std::vector<std::string> notes;
  const auto put = [&](const std::string& directory) {
    fs::create_directories(checkpoints_ / directory);
    notes.push_back("in " + directory);
    std::ofstream(checkpoints_ / directory / "mine") << notes.back();
  };
  save(1, 0), save(3, 0), save(4, 0);
  for (const char* directory :
       {"idea.unfinished", "idea.discarded", "idea.replaced", "step_00000002.unfinished",
        "step_00000004.discarded", "step_00000005.replaced", "step_00000001", "step_00000003",
        "step_00000004", "step_00000009"}) {
    put(directory);
  }
  std::ofstream(checkpoints_ / "paper.unfinished") << "mine";
  fs::create_directories(checkpoints_ / "empty.unfinished");
  flip_byte(file(3, "model.safetensors"), 70);
  prepare_checkpoints(checkpoints_);
  discard_after(checkpoints_, 1);
  for (const int64_t step : {1, 2, 3, 4, 5, 5, 6}) save(step, 1);
  prepare_checkpoints(checkpoints_);
  EXPECT_TRUE(fs::exists(checkpoints_ / "paper.unfinished"));
  EXPECT_TRUE(fs::exists(checkpoints_ / "empty.unfinished"));
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoints_)) {
    if (entry.path().filename() == "mine") found.push_back(read_file(entry.path()));
  }
  std::sort(found.begin(), found.end());
  std::sort(notes.begin(), notes.end());
  EXPECT_EQ(found, notes);
  EXPECT_EQ(newest(), 6);
  EXPECT_EQ(list_checkpoints(checkpoints_), (std::vector<int64_t>{6}));
}

TEST_F(CheckpointTest, ShardsOfAPartAreReadTogether) {
  save(1);
  const fs::path directory = checkpoint_directory(checkpoints_, 1);
  NamedTensors tensors = {{"a", torch::ones({2})}};
  CheckpointState state{1, {}, "{}"};
  for (const char* name : {"model_0.safetensors", "model_1.safetensors"}) {
    const WrittenFile written = write_safetensors(directory / name, tensors);
    state.files.push_back({name, "model", written.size_bytes, written.hash});
    tensors[0].first += "b";
  }
  write_file(directory / "state.json", format_checkpoint_state(state));
  const NamedTensors model = load_checkpoint(directory).model;
  ASSERT_EQ(model.size(), 2u);
  EXPECT_EQ(model[1].first, "ab");
  state.files.push_back(state.files[0]);  // the same tensors once more, in a copy
  state.files[2].name = "model_2.safetensors";
  fs::copy_file(directory / "model_0.safetensors", directory / "model_2.safetensors");
  write_file(directory / "state.json", format_checkpoint_state(state));
  EXPECT_THROW(load_checkpoint(directory), UserError);
}

TEST_F(CheckpointTest, WeightsComeFromAnyPlaceThatHasThem) {
  save(1), save(2);
  const auto value = [](const NamedTensors& weights) {
    return weights.at(0).second[0][0].item<float>();
  };
  EXPECT_EQ(value(load_weights(root_, nullptr)), 2);
  EXPECT_EQ(value(load_weights(checkpoints_, nullptr)), 2);
  EXPECT_EQ(value(load_weights(checkpoint_directory(checkpoints_, 1), nullptr)), 1);
  EXPECT_EQ(value(load_weights(file(1, "model.safetensors"), nullptr)), 1);
  EXPECT_THROW(load_weights(root_ / "missing", nullptr), UserError);
  fs::create_directories(root_ / "empty");
  EXPECT_THROW(load_weights(root_ / "empty", nullptr), UserError);
  EXPECT_THROW(load_weights(file(1, "state.json"), nullptr), UserError);
}

TEST_F(CheckpointTest, ASaveThatFailsLeavesTheOthersAndNothingHalfWritten) {
  save(1);
  Checkpoint bad = make(2);
  bad.optimizer.push_back(bad.optimizer[0]);
  EXPECT_THROW(save_checkpoint(checkpoints_, bad, 1), UserError);
  bad = make(2);
  bad.state_json = "[]";
  EXPECT_THROW(save_checkpoint(checkpoints_, bad, 1), UserError);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001"}));
  std::ofstream(root_ / "file") << "no directory";
  EXPECT_THROW(save_checkpoint(root_ / "file", make(1), 1), MachineError);
}

// What it holds is that of the moment at which it was begun; until it is finished it has no name.
TEST_F(CheckpointTest, OneIsWrittenWhileItsTensorsChange) {
  const auto make_large = [](int64_t step) {
    const at::Tensor value = torch::full({2000, 1000}, static_cast<double>(step));
    return Checkpoint{step, {{"w", value}}, {{"w.exp_avg", value * 2}}, "{}"};
  };
  const auto expect_whole = [&](int64_t step) {
    const Checkpoint read = load_checkpoint(checkpoint_directory(checkpoints_, step));
    const Checkpoint expected = make_large(step);
    EXPECT_TRUE(torch::equal(read.model.at(0).second, expected.model[0].second));
    EXPECT_TRUE(torch::equal(read.optimizer.at(0).second, expected.optimizer[0].second));
  };
  for (const int64_t step : {1, 2}) {
    Checkpoint checkpoint = make_large(step);
    const std::vector<at::Tensor> trained = {checkpoint.model[0].second,
                                             checkpoint.optimizer[0].second};
    CheckpointInWriting saving(checkpoints_, std::move(checkpoint), 3, nullptr,
                               /*in_background=*/true);
    for (const at::Tensor& tensor : trained) tensor.fill_(-1);
    EXPECT_EQ(list_checkpoints(checkpoints_).size(), static_cast<size_t>(step - 1));
    if (step == 2) break;  // one that nobody finishes is finished when it goes
    while (!saving.is_written()) std::this_thread::yield();
    EXPECT_EQ(saving.finish(), checkpoint_directory(checkpoints_, step));
    expect_whole(1);
  }
  expect_whole(2);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000002"}));

  Checkpoint bad = make(3);
  bad.optimizer.push_back(bad.optimizer[0]);
  CheckpointInWriting saving(checkpoints_, std::move(bad), 3, nullptr, /*in_background=*/true);
  EXPECT_THROW(saving.finish(), UserError);
  expect_whole(2);
}

// A checkpoint of any name, whoever was killed between its renames.
TEST_F(CheckpointTest, OneIsReplacedInItsPlace) {
  const fs::path place = root_ / "one", aside = root_ / "one.replaced";
  const auto step = [&] { return load_checkpoint(place).step; };
  write_checkpoint(place / "", make(1));  // with a slash behind it
  write_checkpoint(place, make(2));
  EXPECT_EQ(step(), 2);
  fs::rename(place, aside);  // after the first rename
  EXPECT_EQ(step(), 2) << "the one before is still there to be read";
  write_checkpoint(place, make(3));
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(step(), 3);
  fs::copy(place, aside);  // after the second
  write_checkpoint(place, make(4));
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(step(), 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
}

}  // namespace
}  // namespace flashstep
