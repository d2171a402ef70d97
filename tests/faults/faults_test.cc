// Every system call of a run that saves, each in turn failing, cut short, or the last before
// SIGKILL. After each the checkpoints that were there still are, and the run goes on to the same
// end as one never disturbed.
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "tests/faults/small_run.h"

extern "C" {
void flashstep_fault(const char* under, const char* name, long n, int error, int sticky);
int flashstep_fault_fired(void);
void flashstep_fault_trace(const char* under, char* buffer, size_t size);
}

namespace flashstep::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kShort = -1, kKill = -2;  // as in fault_shim.c
constexpr int64_t kSavedBefore = 2;  // the step of the checkpoint that is there when faults begin

struct Fault {
  const char* function;
  int error;
  bool sticky;
};

struct Ended {
  bool fired = false, killed = false;
  int code = 0;
  std::string message;
};

// In memory where there is such a place: what is tested is the order of calls, not the disk.
fs::path scratch() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::path(::testing::TempDir());
}

class FaultsTest : public ::testing::Test {
 protected:
  FaultsTest() : root_(scratch() / str("faults_test_", ::getpid())) {
    at::set_num_threads(1);  // the children are forks, in which no other thread lives
    fs::create_directories(root_);
    run_.directory = root_ / "run";
    SmallRun whole = run_;
    whole.directory = root_ / "never_stopped";
    continue_run(whole);
    expected_ = outcome(whole);
    SmallRun begun = run_;
    begun.directory = root_ / "begun";
    begun.steps = kSavedBefore;
    continue_run(begun);
  }
  ~FaultsTest() override { fs::remove_all(root_); }

  void restore() const {
    fs::remove_all(run_.directory);
    fs::copy(root_ / "begun", run_.directory, fs::copy_options::recursive);
  }

  // Continues the run in a child whose n-th call of fault.function is disturbed.
  Ended continue_with(const Fault& fault, long n) const {
    const fs::path message = root_ / "message";
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      std::string text;
      flashstep_fault(run_.directory.c_str(), fault.function, n, fault.error, fault.sticky);
      try {
        continue_run(run_);
      } catch (const MachineError& error) {
        code = 1;
        text = error.what();
      } catch (const std::exception& error) {
        code = 2;
        text = error.what();
      }
      std::ofstream(message) << (flashstep_fault_fired() ? 'y' : 'n') << text;
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    Ended ended;
    ended.killed = WIFSIGNALED(status);
    ended.code = ended.killed ? -WTERMSIG(status) : WEXITSTATUS(status);
    if (!ended.killed) {
      ended.message = read_file(message);
      ended.fired = ended.message.front() == 'y';
      ended.message.erase(0, 1);
    }
    return ended;
  }

  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(run_.directory)) {
      const std::string name = entry.path().filename().string();
      if (name.front() == '.' || name.find(".unfinished") != std::string::npos ||
          name.find(".replaced") != std::string::npos) {
        found.push_back(entry.path().string());
      }
    }
    return found;
  }

  void expect_whole_checkpoint() const {
    const auto checkpoint =
        load_newest(run_.directory / "checkpoints",
                    [](const std::string& sentence) { ADD_FAILURE() << sentence; });
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_GE(checkpoint->step, kSavedBefore);
  }

  void expect_same_end() const {
    continue_run(run_);
    EXPECT_EQ(outcome(run_), expected_);
    EXPECT_TRUE(unfinished().empty()) << join(unfinished());
  }

  SmallRun run_;
  fs::path root_;
  std::string expected_;
};

TEST_F(FaultsTest, EveryFailingCallEndsInASentenceAndLosesNothing) {
  const Fault faults[] = {{"write", ENOSPC, true},   {"write", EIO, false},
                          {"fsync", EIO, false},     {"fsync", ENOSPC, true},
                          {"rename", EIO, false},    {"rename", ENOSPC, true},
                          {"ftruncate", EIO, false}, {"open", ENOSPC, true},
                          {"open", EIO, false},      {"mkdir", ENOSPC, true}};
  for (const Fault& fault : faults) {
    long n = 1;
    for (;; ++n) {
      restore();
      const Ended ended = continue_with(fault, n);
      SCOPED_TRACE(str(fault.function, " number ", n, " fails with ", std::strerror(fault.error),
                       fault.sticky ? " for good" : "", ": ", ended.message));
      if (!ended.fired) break;
      EXPECT_EQ(ended.code, 1);
      EXPECT_NE(ended.message.find(std::strerror(fault.error)), std::string::npos);
      EXPECT_EQ(ended.message.find('\n'), std::string::npos);
      EXPECT_TRUE(unfinished().empty()) << join(unfinished());
      expect_whole_checkpoint();
      expect_same_end();
      if (HasFailure()) return;
    }
    EXPECT_GT(n, 1) << fault.function << " was never called";
  }
}

TEST_F(FaultsTest, ShortWritesAreContinued) {
  long n = 1;
  for (;; ++n) {
    restore();
    const Ended ended = continue_with({"write", kShort, false}, n);
    if (!ended.fired) break;
    ASSERT_EQ(ended.code, 0) << ended.message;
    ASSERT_EQ(outcome(run_), expected_) << "write number " << n;
  }
  EXPECT_GT(n, 10);
}

TEST_F(FaultsTest, AProcessKilledBeforeAnyCallGoesOnAsIfNeverStopped) {
  long n = 1;
  for (;; ++n) {
    restore();
    const Ended ended = continue_with({"any", kKill, false}, n);
    SCOPED_TRACE(str("killed before call ", n));
    if (!ended.killed) break;
    ASSERT_EQ(ended.code, -SIGKILL);
    expect_whole_checkpoint();
    expect_same_end();
    if (HasFailure()) return;
  }
  EXPECT_GT(n, 50);
}

// The removal of old checkpoints may fail too; what it leaves is removed at the next start.
TEST_F(FaultsTest, AFailingRemovalLosesNothing) {
  long n = 1;
  for (;; ++n) {
    restore();
    const Ended ended = continue_with({"remove", EIO, true}, n);
    SCOPED_TRACE(str("removal ", n, " fails: ", ended.message));
    if (!ended.fired) break;
    EXPECT_EQ(ended.code, 1);
    expect_whole_checkpoint();
    expect_same_end();
    if (HasFailure()) return;
  }
  EXPECT_GT(n, 3);
}

// A kill shows what a dead process leaves; a power failure leaves what was flushed. The order of
// calls says it: each file's bytes, then its name, then the directory of names, then that
// directory's own name.
TEST_F(FaultsTest, EverythingIsFlushedBeforeItGetsItsName) {
  restore();
  const fs::path checkpoints = run_.directory / "checkpoints";
  std::string trace(1 << 16, '\0');
  flashstep_fault_trace(checkpoints.c_str(), trace.data(), trace.size());
  save_checkpoint(checkpoints, {9, {{"w", torch::ones({3})}}, {}, "{}"}, 0);
  flashstep_fault_trace("", nullptr, 0);

  const std::string unfinished = checkpoints / "step_00000009.unfinished";
  size_t at = 0;
  const auto expect_next = [&](const std::string& line) {
    at = trace.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << " is missing, or too early, in\n" << trace.c_str();
    at += line.size();
  };
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    expect_next("write " + unfinished + "/." + name + ".tmp-");
    expect_next("fsync " + unfinished + "/." + name + ".tmp-");
    expect_next("rename " + unfinished + "/" + name + "\n");
  }
  expect_next("fsync " + unfinished + "\n");
  expect_next("rename " + (checkpoints / "step_00000009").string() + "\n");
  expect_next("fsync " + checkpoints.string() + "\n");
}

}  // namespace
}  // namespace flashstep::testing
