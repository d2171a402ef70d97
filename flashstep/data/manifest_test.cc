#include "flashstep/data/manifest.h"

#include <chrono>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    fs::create_directories(directory_);
    write_file(text_, "Once upon a time");
    write_file(tokens_, "123456");
    write_manifest(manifest_, stage_);
  }
  ~ManifestTest() override { fs::remove_all(directory_); }

  // Expects that `stage` does not hold, for a reason with `part` in it.
  void expect_broken(const Stage& stage, const std::string& part) const {
    const Verdict verdict = holds(manifest_, stage);
    EXPECT_FALSE(verdict.holds);
    EXPECT_NE(verdict.why.find(part), std::string::npos) << "said: " << verdict.why;
  }
  void touch(const fs::path& path) const {
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(5));
  }

  const fs::path directory_ = fs::temp_directory_path() / str("flashstep-manifest-", ::getpid());
  const fs::path text_ = directory_ / "text.txt", tokens_ = directory_ / "tokens.npy";
  const fs::path manifest_ = manifest_path(tokens_);
  const Stage stage_ = {
      "tokens", {{"vocab_size", "512"}, {"tokenizer", "ab12"}}, {text_}, {tokens_}};
};

TEST_F(ManifestTest, HoldsAfterItWasWritten) {
  EXPECT_EQ(manifest_.filename(), "tokens.npy.manifest.json");
  const Verdict verdict = holds(manifest_, stage_);
  EXPECT_TRUE(verdict.holds) << verdict.why;
  EXPECT_EQ(verdict.why, "");
}

TEST_F(ManifestTest, ReadsBackWhatItWrote) {
  const Manifest manifest = parse_manifest(read_file(manifest_), "m");
  EXPECT_EQ(manifest.stage, "tokens");
  EXPECT_EQ(manifest.settings, stage_.settings);
  ASSERT_EQ(manifest.inputs.size(), 1u);
  EXPECT_EQ(manifest.inputs[0].path, text_.string());
  EXPECT_EQ(manifest.inputs[0].size_bytes, 16u);
  EXPECT_EQ(manifest.outputs[0].hash.size(), 32u);
}

TEST_F(ManifestTest, AnotherTimeWithTheSameContentHolds) {
  touch(text_);
  touch(tokens_);
  EXPECT_TRUE(holds(manifest_, stage_).holds);
  fs::copy_file(text_, directory_ / "elsewhere.txt");
  Stage moved = stage_;
  moved.inputs[0] = directory_ / "elsewhere.txt";
  EXPECT_TRUE(holds(manifest_, moved).holds);
}

TEST_F(ManifestTest, NamesWhatDisagrees) {
  Stage stage = stage_;
  stage.settings["vocab_size"] = "1024";
  expect_broken(stage, "vocab_size is 1024 and was 512");
  stage = stage_;
  stage.settings["threads"] = "2";
  expect_broken(stage, "threads is 2 and was not set");
  stage = stage_;
  stage.settings.erase("tokenizer");
  expect_broken(stage, "tokenizer is not set and was ab12");
  stage = stage_;
  stage.name = "tokenizer";
  expect_broken(stage, "belongs to the stage tokens, not tokenizer");
  stage = stage_;
  stage.inputs.push_back(text_);
  expect_broken(stage, "there are 2 inputs and were 1");
}

TEST_F(ManifestTest, NoticesChangedFiles) {
  write_file(text_, "Once upon a tome");
  touch(text_);  // whatever the clock's grain
  expect_broken(stage_, "text.txt has changed");
  write_file(text_, "Once upon a time!");
  expect_broken(stage_, "text.txt has 17 bytes and had 16");
  write_file(text_, "Once upon a time");
  EXPECT_TRUE(holds(manifest_, stage_).holds);
  fs::remove(tokens_);
  expect_broken(stage_, "tokens.npy cannot be read: No such file");
}

TEST_F(ManifestTest, LooksAtContentOnlyWhenTheTimeDiffers) {
  const auto time = fs::last_write_time(text_);
  write_file(text_, "Once upon a tome");
  fs::last_write_time(text_, time);
  EXPECT_TRUE(holds(manifest_, stage_).holds) << "this is the price of a quick answer";
}

TEST_F(ManifestTest, MissingOrMalformedDoesNotHold) {
  for (const char* json : {"", "{", "[]", "7", "{}", "{\"stage\": 3}",
                           "{\"stage\": \"tokens\", \"settings\": {\"a\": 1}}",
                           "{\"stage\": \"tokens\", \"settings\": {}, \"inputs\": [3]}",
                           "{\"stage\": \"t\", \"settings\": {}, \"inputs\": [{\"path\": \"x\", "
                           "\"size_bytes\": -1}], \"outputs\": []}"}) {
    write_file(manifest_, json);
    expect_broken(stage_, "expected");
    EXPECT_THROW(parse_manifest(json, "m"), UserError) << json;
  }
  fs::remove(manifest_);
  expect_broken(stage_, "there is no " + manifest_.string());
}

TEST_F(ManifestTest, RefusesToDescribeMissingFiles) {
  Stage stage = stage_;
  stage.outputs.push_back(directory_ / "missing");
  EXPECT_THROW(write_manifest(manifest_, stage), UserError);
  EXPECT_TRUE(holds(manifest_, stage_).holds) << "the old manifest must survive";
}

TEST_F(ManifestTest, WhatSomebodyElseMadeIsNotReplaced) {
  EXPECT_NO_THROW(require_own_outputs(manifest_, stage_));
  EXPECT_EQ(begin_stage(manifest_, stage_).kept, "");
  write_file(tokens_, "654321");  // changed, but made here: made anew, and the change is kept
  EXPECT_TRUE(contains(begin_stage(manifest_, stage_).kept, "tokens.npy.changed"));
  EXPECT_EQ(read_file(tokens_.string() + ".changed"), "654321");
  EXPECT_FALSE(fs::exists(tokens_));
  write_file(tokens_, "123456");
  Stage other = stage_;
  other.name = "tokenizer";
  EXPECT_THROW(begin_stage(manifest_, other), UserError);
  other = stage_;
  other.outputs.push_back(text_);
  EXPECT_THROW(require_own_outputs(manifest_, other), UserError);
  fs::remove(manifest_);
  EXPECT_THROW(begin_stage(manifest_, stage_), UserError);
  EXPECT_FALSE(fs::exists(manifest_)) << "what was refused is not claimed";
}

TEST_F(ManifestTest, WhatAKilledProcessLeftIsKnownAsOurs) {
  fs::remove(manifest_);
  fs::remove(tokens_);
  begin_stage(manifest_, stage_);
  expect_broken(stage_, "tokens.npy was not finished");
  write_file(tokens_, "");
  fs::last_write_time(tokens_, fs::file_time_type::clock::from_sys(std::chrono::sys_seconds()));
  expect_broken(stage_, "tokens.npy was not finished");
  EXPECT_NO_THROW(begin_stage(manifest_, stage_));
  write_manifest(manifest_, stage_, begin_stage(manifest_, stage_));
  EXPECT_TRUE(holds(manifest_, stage_).holds);
  begin_stage(manifest_, stage_);
  EXPECT_TRUE(holds(manifest_, stage_).holds) << "an older claim stays as it is";
}

// What was made of a text that is another one by now is not recorded as made of that one.
TEST_F(ManifestTest, AnInputThatChangesWhileItIsReadIsRefused) {
  for (const bool was_made_before : {true, false}) {
    if (!was_made_before) fs::remove(manifest_), fs::remove(tokens_);
    const StageBegun begun = begin_stage(manifest_, stage_);
    write_file(tokens_, was_made_before ? "of the first" : "of the second");
    write_file(directory_ / "new.txt", "Twice upon a day");  // as long as the text
    touch(directory_ / "new.txt");
    if (!was_made_before) touch(directory_ / "new.txt");
    fs::rename(directory_ / "new.txt", text_);
    EXPECT_EQ(testing::refusal([&] { write_manifest(manifest_, stage_, begun); }),
              str("[data] expected ", text_.string(),
                  " to stay as it is while it is read, got another file or a change: run the same "
                  "command again when nobody writes to it"));
    expect_broken(stage_, "tokens.npy was not finished");
    EXPECT_EQ(begin_stage(manifest_, stage_).kept, "") << "what was not finished is nobody's work";
    write_manifest(manifest_, stage_, begin_stage(manifest_, stage_));
    EXPECT_TRUE(holds(manifest_, stage_).holds);
  }
}

TEST_F(ManifestTest, AnInputThatIsRemovedWhileItIsReadIsRefused) {
  const StageBegun begun = begin_stage(manifest_, stage_);
  fs::remove(text_);
  EXPECT_THROW(write_manifest(manifest_, stage_, begun), UserError);
  expect_broken(stage_, "tokens.npy was not finished");
}

}  // namespace
}  // namespace flashstep
