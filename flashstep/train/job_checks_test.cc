// What a job gives is looked at before it is used.
#include <cmath>
#include <filesystem>
#include <limits>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;

class JobChecks : public ::testing::Test {
 protected:
  JobChecks() {
    options_.run_directory =
        fs::path(::testing::TempDir()) / flashstep::str("job_checks_", ::getpid());
    options_.steps = 4;
    options_.checkpointing_interval = 1;
    options_.quiet = true;
    fs::remove_all(options_.run_directory);
  }
  ~JobChecks() override { fs::remove_all(options_.run_directory); }

  torch::nn::Linear net_{3, 3};
  AdamW optimizer_{net_->parameters()};
  Job job_{*net_, optimizer_, [this](int64_t, int64_t) {
             return net_->forward(torch::ones({2, 3})).sum();
           }};
  LoopOptions options_;
};

TEST_F(JobChecks, ARateThatIsNoneIsNotUsed) {
  for (const double none : {std::nan(""), -1e-3, std::numeric_limits<double>::infinity()}) {
    job_.learning_rate = [&](int64_t t) { return t == 3 ? none : 1e-3; };
    fs::remove_all(options_.run_directory);
    expect_sentence([&] { run(job_, options_); }, {"learning_rate", "update 3"});
    EXPECT_TRUE(net_->weight.isfinite().all().item<bool>());
    EXPECT_EQ(list_checkpoints(options_.run_directory / "checkpoints").back(), 2);
  }
}

// Before anything is trained, not at the first save.
TEST_F(JobChecks, OptionsThatCannotBeAreRefusedAtOnce) {
  options_.keep_checkpoints = -1;
  expect_sentence([&] { run(job_, options_); }, {"keep_checkpoints", "got -1"});
  options_.keep_checkpoints = 0;
  options_.max_skipped_in_a_row = 0;
  expect_sentence([&] { run(job_, options_); }, {"max_skipped_in_a_row", "got 0"});
  EXPECT_FALSE(fs::exists(options_.run_directory));
}

TEST_F(JobChecks, AConfigIsAJsonObject) {
  for (const char* config : {"", "{\"a\": ", "steps: 4", "[1, 2]"}) {
    job_.config_json = config;
    expect_sentence([&] { run(job_, options_); }, {"config_json", "JSON object"});
    EXPECT_FALSE(fs::exists(options_.run_directory));
  }
}

// One rank would wait for the others' buffers, or units.
TEST_F(JobChecks, WhatAllRanksMustHaveIsRefusedOfOne) {
  testing::run_ranks(2, [&](const Environment& environment) {
    const Group group(environment);
    options_.run_directory =
        fs::temp_directory_path() / flashstep::str("job_checks_of_one_", ::getppid());
    job_.parallel = data_parallelism(*net_, group);
    if (group.is_first()) job_.held_out_loss = [] { return 1.0; };
    expect_sentence([&] { run(job_, options_); },
                    {"expected the same steps on every rank", "a held_out_loss on rank 0"});
    if (group.is_first()) fs::remove_all(options_.run_directory);
  });
  testing::run_ranks(2, [&](const Environment& environment) {
    const Group group(environment);
    options_.run_directory =
        fs::temp_directory_path() / flashstep::str("job_checks_of_one_", ::getppid());
    job_.parallel = full_sharding(*net_, group);
    if (!group.is_first()) job_.sample = [] { return "text"; };
    expect_sentence([&] { run(job_, options_); },
                    {"expected the same steps on every rank", "a sample on rank 1"});
    if (group.is_first()) fs::remove_all(options_.run_directory);
  });
}

TEST_F(JobChecks, AnotherTokenizerIsRefusedOnResuming) {
  job_.tokenizer_fingerprint = "its own";
  options_.checkpointing_interval = 0;
  run(job_, options_);
  options_.resume = true;
  options_.steps = 6;
  job_.tokenizer_fingerprint = "another";
  expect_sentence([&] { run(job_, options_); },
                  {"[resume] expected the tokenizer", "its own", "got another one (another)"});
  job_.tokenizer_fingerprint.clear();  // not known
  EXPECT_EQ(run(job_, options_).steps, 6);
}

}  // namespace
}  // namespace flashstep
