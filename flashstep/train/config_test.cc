#include "flashstep/train/config.h"

#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / flashstep::str("config_test_", ::getpid(), ".json");
  }
  void TearDown() override { fs::remove(path_); }

  // With a model, which every config must have.
  Config load(const std::string& json, std::vector<std::string> assignments = {}) {
    write_file(path_, json);
    assignments.insert(assignments.begin(), "model.size=small");
    return load_config(path_, assignments);
  }
  void expect_refusal(const std::string& json, const std::vector<std::string>& parts,
                      const std::vector<std::string>& assignments = {}) {
    testing::expect_sentence([&] { load(json, assignments); }, parts);
  }

  fs::path path_;
};

TEST_F(ConfigTest, OverridesInOrder) {
  const Config config = load(R"({"train": {"steps": 5}, "schedule": {"warmup_steps": 1}})",
                             {"train.steps=7", "train.steps=9", "text.source=a=b.txt"});
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.text.source, "a=b.txt");
  EXPECT_EQ(config.schedule.warmup_steps, 1);
}

TEST_F(ConfigTest, AWarmUpThatWasNotGivenFitsTheRun) {
  EXPECT_EQ(load("{}").schedule.warmup_steps, 100);
  EXPECT_FALSE(load("{}").schedule.is_warmup_given);
  EXPECT_TRUE(load("{}", {"schedule.warmup_steps=100"}).schedule.is_warmup_given);
  EXPECT_EQ(load("{}", {"train.steps=100"}).schedule.warmup_steps, 100);
  EXPECT_EQ(load("{}", {"train.steps=50"}).schedule.warmup_steps, 5);
  EXPECT_EQ(load("{}", {"train.steps=1"}).schedule.warmup_steps, 0);
  EXPECT_EQ(load("{}", {"schedule.cosine_steps=80"}).schedule.warmup_steps, 8);
  expect_refusal(R"({"schedule": {"warmup_steps": 100}})", {"warmup_steps", "50", "100"},
                 {"train.steps=50"});
  expect_refusal(R"({"schedule": {"warmup_steps": 10}})", {"warmup_steps", "cosine_steps, 5"},
                 {"schedule.cosine_steps=5"});
  // A constant rate has no cosine.
  const std::string constant = R"({"schedule": {"kind": "constant", "cosine_steps": 5}})";
  EXPECT_EQ(load(constant, {"schedule.warmup_steps=10"}).schedule.warmup_steps, 10);
  EXPECT_EQ(load(constant).schedule.warmup_steps, 100);
}

TEST_F(ConfigTest, WhatIsWrittenIsReadAgain) {
  Config config = load(
      "{}", {"train.steps=123", "sampling.prompts=[\"a\",\"b\"]", "schedule.learning_rate=3.3e-4"});
  const std::string text = write_json(config);
  EXPECT_EQ(write_json(load(text)), text);
}

TEST_F(ConfigTest, TyposGetTheNearestName) {
  expect_refusal(R"({"train": {"stpes": 5}})", {"train.stpes", "steps"});
  expect_refusal(R"({"modle": {}})", {"modle", "model"});
  expect_refusal("{}", {"learning_rat", "learning_rate"}, {"schedule.learning_rat=1"});
  expect_refusal(R"({"checkpointing": {"checkpointing_intervall": 3}})",
                 {"checkpointing_interval"});
}

TEST_F(ConfigTest, RangesAndTypes) {
  expect_refusal(R"({"train": {"steps": 0}})", {"train.steps", "1", "0"});
  expect_refusal(R"({"train": {"evaluation_tokens": 1}})",
                 {"train.evaluation_tokens", "at least 2", "0", "got 1"});
  EXPECT_EQ(load(R"({"train": {"evaluation_tokens": 2}})").train.evaluation_tokens, 2);
  expect_refusal(R"({"train": {"steps": "many"}})", {"train.steps", "many"});
  expect_refusal(R"({"train": {"precision": "fp8"}})",
                 {"train.precision", "fp32", "bf16", "fp16", "fp8"});
  expect_refusal(R"({"train": {"stream": "bf16"}})", {"train.stream", "fp32", "got bf16"});
  expect_refusal(R"({"train": {"precision": "bf16", "fp32_products": "split"}})",
                 {"train.fp32_products", "exact", "got split"});
  expect_refusal(R"({"train": {"precision": "fp32", "bf16_products": "fp8"}})",
                 {"train.bf16_products", "exact", "got fp8"});
  expect_refusal(
      R"({"model": {"d_ff": 1352}, "train": {"precision": "bf16", "bf16_products": "fp8"}})",
      {"d_ff", "multiples of 16", "1352"});
  expect_refusal(
      R"({"model": {"d_model": 96, "num_heads": 8},
          "train": {"precision": "bf16", "bf16_products": "fp8"}})",
      {"multiple of 8", "got 12"});
  expect_refusal(R"({"train": {"graph": "yes"}})", {"train.graph", "auto", "on", "off", "yes"});
  expect_refusal(R"({"sampling": {"top_p": 1.5}})", {"sampling.top_p", "1.5"});
  expect_refusal(R"({"train": {"steps": 5)", {path_.string()});
  expect_refusal(R"([1])", {path_.string()});
}

TEST_F(ConfigTest, FieldsThatContradictEachOther) {
  expect_refusal(R"({"schedule": {"learning_rate": 1e-4, "min_learning_rate": 1e-3}})",
                 {"min_learning_rate", "0.0001"});
  expect_refusal(R"({"train": {"steps": 10}, "schedule": {"warmup_steps": 20}})",
                 {"warmup_steps", "10", "20"});
  expect_refusal(R"({"parallel": {"shard_ranks": 2}})",
                 {"parallel.shard_ranks 0", "shard_optimizer none", "got 2"});
  EXPECT_EQ(
      load(R"({"parallel": {"shard_ranks": 2, "shard_optimizer": "full"}})").parallel.shard_ranks,
      2);
  expect_refusal(R"({"optimizer": {"in_backward": true}})",
                 {"optimizer.clip_norm 0", "optimizer.in_backward", "got 1, 1 and fp32"});
  expect_refusal(R"({"tokens": {"train": "a.npy"}})", {"tokens.train", "tokens.validation"});
  expect_refusal(R"({"tokenizer": {"vocab_size": 256}})", {"vocab_size", "256 + 1", "got 256"});
  expect_refusal(R"({"tokenizer": {"special_tokens": [""]}})", {"special_tokens", "got \"\""});
}

TEST_F(ConfigTest, WhatSeveralProcessesCannotDo) {
  const Config in_backward = load("{}", {"optimizer.in_backward=true", "optimizer.clip_norm=0"});
  check_processes(in_backward, 1);
  testing::expect_sentence([&] { check_processes(in_backward, 2); },
                           {"parallel.shard_optimizer full", "got 2 processes and none"});
  Config torch = load("{}", {"train.gradients=bf16", "parallel.wrapper=torch"});
  check_processes(torch, 1);
  testing::expect_sentence([&] { check_processes(torch, 2); },
                           {"train.weights, fp32", "parallel.wrapper torch", "got bf16"});
  torch.train.weights = "bf16";
  check_processes(torch, 2);
}

TEST_F(ConfigTest, ModelsThatCannotBe) {
  expect_refusal("{}", {"d_model", "num_heads", "768", "5"}, {"model.num_heads=5"});
  expect_refusal("{}", {"even head_dim", "3"}, {"model.num_heads=256"});
  expect_refusal("{}", {"model.size", "small", "xl", "huge"}, {"model.size=huge"});
}

TEST_F(ConfigTest, MissingFile) {
  EXPECT_THROW(load_config("/nonexistent/config.json"), UserError);
  EXPECT_THROW(load_run_config("/nonexistent"), UserError);
}

TEST_F(ConfigTest, OnlyTheSameModelAndDataCanBeResumed) {
  const Config saved = load("{}");
  Config now = saved;
  EXPECT_TRUE(check_resumable(saved, now).empty());
  now.train.steps += 1;
  now.schedule.learning_rate = 0.5;
  EXPECT_EQ(check_resumable(saved, now).size(), 2u);
  now = saved;
  now.model.size = "medium";
  EXPECT_THROW(check_resumable(saved, now), UserError);
  now = saved;
  now.train.batch_size += 1;
  EXPECT_THROW(check_resumable(saved, now), UserError);
}

// What lies behind a path is compared by its fingerprint.
TEST_F(ConfigTest, PathsMayBeSpelledOtherwiseOnResuming) {
  const Config saved = load("{}", {"text.source=t/en.txt"});
  const auto refuses = [](const Config& before, const std::vector<std::string>& fields) {
    Config now = before;
    for (const std::string& field : fields) set_field(now, field);
    try {
      check_resumable(before, now);
      return false;
    } catch (const UserError&) {
      return true;
    }
  };
  EXPECT_FALSE(refuses(saved, {"text.source=./t/en.txt", "text.directory=elsewhere"}));
  EXPECT_FALSE(refuses(saved, {"text.stories_seed=7", "text.stories_megabytes=3"}));
  EXPECT_TRUE(refuses(saved, {"text.source=stories"}));
  EXPECT_TRUE(refuses(saved, {"text.validation=t/held_out.txt"}));
  EXPECT_FALSE(refuses(saved, {"tokenizer.path=mine"}));  // its contents decide
  const Config given = load("{}", {"text.validation=a.txt", "tokenizer.path=b"});
  EXPECT_FALSE(refuses(given, {"text.validation=../a.txt", "tokenizer.path=/b"}));
  EXPECT_TRUE(refuses(given, {"tokenizer.path="}));
  // How one would be trained says nothing of one that is given.
  const std::string special = "tokenizer.special_tokens=[\"<a>\"]";
  EXPECT_FALSE(refuses(given, {"tokenizer.vocab_size=500", special}));
  EXPECT_TRUE(refuses(saved, {"tokenizer.vocab_size=500"}));
  EXPECT_TRUE(refuses(saved, {"tokenizer.path=mine", special}));
  const Config built_in = load("{}", {"text.source=stories"});
  EXPECT_TRUE(refuses(built_in, {"text.stories_seed=7"}));
  EXPECT_TRUE(refuses(built_in, {"text.stories_megabytes=3"}));
}

// Every committed config is one that would run.
TEST_F(ConfigTest, CommittedConfigsAreValid) {
  const char* source = std::getenv("FLASHSTEP_SOURCE");
  ASSERT_NE(source, nullptr);
  int configs = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(source) / "configs")) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_NO_THROW(load_config(entry.path())) << entry.path();
    ++configs;
  }
  EXPECT_GE(configs, 2);
}

}  // namespace
}  // namespace flashstep
