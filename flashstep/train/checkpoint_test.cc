#include "flashstep/checkpoint.h"

#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_in_writing.h"
#include "flashstep/train/test_checkpoints.h"

namespace flashstep {
namespace {

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

TEST_F(CheckpointTest, WhatCannotBeReadForTheMomentIsNotDamaged) {
  save(1), save(2);
  const auto expect_sentence = [](const std::exception& error, const std::string& name) {
    const std::string sentence = error.what();
    EXPECT_TRUE(contains(sentence, name) && contains(sentence, "it may be whole")) << sentence;
  };
  const OrdinaryUser user(root_);
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    SCOPED_TRACE(name);
    const Forbidden forbidden(file(2, name.c_str()));
    try {
      newest();
      ADD_FAILURE() << "expected a UserError";
    } catch (const UserError& error) {
      expect_sentence(error, name);
    }
    EXPECT_TRUE(warnings_.empty());
    if (name == "optimizer.safetensors") {
      EXPECT_NO_THROW(load_weights(root_, nullptr)) << "they are in the model's file";
    } else {
      EXPECT_THROW(load_weights(root_, nullptr), UserError);
    }
  }
  EXPECT_EQ(newest(), 2);
  try {
    const OneDescriptor one;  // the model's file is open when the optimizer's is wanted
    newest();
    ADD_FAILURE() << "expected a MachineError";
  } catch (const MachineError& error) {
    expect_sentence(error, "optimizer.safetensors");
  }
  EXPECT_EQ(newest(), 2);
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

}  // namespace
}  // namespace flashstep
