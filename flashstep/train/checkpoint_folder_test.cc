// What becomes of directories beside a checkpoint: kept, set aside, brought back, left alone.
#include "flashstep/train/checkpoint_folder.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/train/test_checkpoints.h"

namespace flashstep {
namespace {

class CheckpointFolderTest : public CheckpointTest {};

TEST_F(CheckpointFolderTest, KeepsTheNewest) {
  for (const int64_t step : {1, 2, 10, 100}) save(step, 2);
  EXPECT_EQ(list_checkpoints(checkpoints_), (std::vector<int64_t>{10, 100}));
  save(101, 0);
  EXPECT_EQ(list_checkpoints(checkpoints_), (std::vector<int64_t>{10, 100, 101}));
  save(123456789, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_123456789"}));
  EXPECT_EQ(newest(), 123456789);
}

TEST_F(CheckpointFolderTest, WhatAKilledProcessLeftIsCleared) {
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

TEST_F(CheckpointFolderTest, TheSameStepIsReplaced) {
  save(1);
  Checkpoint other = make(1);
  other.state_json = "{\"seed\":2}";
  save_checkpoint(checkpoints_, other, 1);
  EXPECT_EQ(load_checkpoint(checkpoint_directory(checkpoints_, 1)).state_json, "{\"seed\":2}");
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001"}));
}

TEST_F(CheckpointFolderTest, AFutureThatWasGivenUpDoesNotComeBack) {
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

// A run that began anew in a folder of checkpoints: they are there until its second save.
TEST_F(CheckpointFolderTest, WhatASaveSetsAsideIsThereUntilTheNext) {
  for (const int64_t step : {10, 20, 30}) save(step, 0);
  save(5, 0);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"step_00000005", "step_00000010.discarded",
                                      "step_00000020.discarded", "step_00000030.discarded"}));
  EXPECT_EQ(newest(), 5);
  save(6, 0);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000005", "step_00000006"}));
  // Under the name of one that a killed process did not remove.
  save(7, 0);
  fs::copy(checkpoint_directory(checkpoints_, 7), checkpoints_ / "step_00000007.discarded");
  save(4, 0);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"step_00000004", "step_00000005.discarded",
                                      "step_00000006.discarded", "step_00000007.discarded"}));
}

TEST_F(CheckpointFolderTest, DamagedOnesStayUnderAnotherName) {
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

TEST_F(CheckpointFolderTest, OtherFilesInTheDirectoryAreLeftAlone) {
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
TEST_F(CheckpointFolderTest, NoDirectoryWithFilesOfOthersIsRemoved) {
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

// A checkpoint of any name, whoever was killed between its renames.
TEST_F(CheckpointFolderTest, OneIsReplacedInItsPlace) {
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

// A save looks at state.json and at sizes only: reading all of a large checkpoint would hold up the
// ranks.
TEST_F(CheckpointFolderTest, ASaveDoesNotReadWhatItSetsAside) {
  save(1), save(5), save(6);
  flip_byte(file(5, "model.safetensors"), 70);
  fs::resize_file(file(6, "optimizer.safetensors"), 70);
  save(2, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000002", "step_00000005.discarded",
                                               "step_00000006.damaged"}));
}

// It keeps its name, and does not count among those that are kept.
TEST_F(CheckpointFolderTest, WhatCannotBeReadForTheMomentKeepsItsName) {
  save(1), save(5);
  const OrdinaryUser user(root_);
  for (const char* name : {"state.json", "model.safetensors", "optimizer.safetensors"}) {
    const Forbidden forbidden(file(5, name));
    discard_after(checkpoints_, 1);
    EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000005"})) << name;
  }
  {
    const OneDescriptor one;  // the model's file is open when the optimizer's is wanted
    discard_after(checkpoints_, 1);
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000005"}));
  const Forbidden forbidden(file(5, "state.json"));
  save(2, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000002", "step_00000005"}));
}

// Where .replaced is somebody else's, what is replaced lies under -2.replaced.
TEST_F(CheckpointFolderTest, WhatMadeRoomUnderANumberComesBack) {
  save(1), save(2);
  const fs::path directory = checkpoint_directory(checkpoints_, 2);
  const fs::path aside = checkpoints_ / "step_00000002-2.replaced";
  const std::string others = "step_00000002.replaced";
  fs::create_directories(checkpoints_ / others / "mine");
  fs::rename(directory, aside);  // as a process does that is killed after its first rename
  EXPECT_EQ(load_checkpoint(directory).step, 2) << "it is still there to be read";
  prepare_checkpoints(checkpoints_);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_00000001", "step_00000002", others}));
  EXPECT_EQ(newest(), 2);
  fs::rename(directory, aside);
  UnfinishedCheckpoint again(checkpoints_, 2);
  again.begin();  // also when nobody prepared
  EXPECT_TRUE(fs::exists(directory));
  fs::copy(directory, aside);  // killed after the second
  prepare_checkpoints(checkpoints_);
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_TRUE(fs::exists(checkpoints_ / others / "mine"));
}

}  // namespace
}  // namespace flashstep
