#include "flashstep/train/run_log.h"

#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class RunLogTest : public ::testing::Test {
 protected:
  RunLogTest()
      : root_(fs::path(::testing::TempDir()) / flashstep::str("run_log_test_", ::getpid())) {
    options_.quiet = true;
    options_.max_skipped_in_a_row = 4;
    directory_.emplace(root_, false);
    log_.emplace(*directory_, job_, options_, 0, RunCounters());
  }
  ~RunLogTest() override {
    log_.reset();
    directory_.reset();
    fs::remove_all(root_);
  }

  void add(int64_t from, int64_t to, bool skipped) {
    for (int64_t step = from; step <= to; ++step) {
      const torch::Tensor value = torch::ones({});
      log_->add(step, 1e-3, {value, value, value * (skipped ? 1 : 0)});
    }
  }
  // At step 7, of ten that were skipped from step 4 on.
  void expect_given_up() const {
    EXPECT_TRUE(log_->gave_up());
    EXPECT_TRUE(contains(log_->why_given_up(), "4 steps in a row, up to step 7;"))
        << log_->why_given_up();
    EXPECT_FALSE(contains(log_->why_given_up(), "finite parameters"))
        << "nobody has looked at them";
    EXPECT_EQ(log_->counters().skipped, 10);
    EXPECT_EQ(log_->counters().skipped_in_a_row, 0) << "who resumes is counted anew";
  }

  const fs::path root_;
  torch::nn::Linear net_{1, 1};
  torch::optim::SGD optimizer_{net_->parameters(), 1e-3};
  const Job job_{*net_, optimizer_, nullptr};
  LoopOptions options_;
  std::optional<RunDirectory> directory_;
  std::optional<RunLog> log_;
};

// As of a GPU, whose steps nobody looks at before they are flushed: those that were under way when
// too many had been skipped do not count against the run that goes on.
TEST_F(RunLogTest, StepsThatWereUnderWayDoNotCountInARow) {
  add(1, 3, false), add(4, 13, true);
  EXPECT_FALSE(log_->gave_up());
  EXPECT_EQ(log_->counters().skipped, 0);
  log_->flush(13);
  expect_given_up();
}

// Whichever were looked at, each is counted once.
TEST_F(RunLogTest, LookingCountsWhatTheFlushDoesNot) {
  add(1, 3, false), add(4, 6, true);
  log_->look();
  EXPECT_FALSE(log_->gave_up());
  EXPECT_EQ(log_->counters().skipped, 3);
  add(7, 7, true);
  log_->look();
  EXPECT_TRUE(log_->gave_up()) << "at once, where it costs nothing to look";
  log_->look();
  add(8, 13, true);
  log_->flush(13);
  expect_given_up();
}

}  // namespace
}  // namespace flashstep
