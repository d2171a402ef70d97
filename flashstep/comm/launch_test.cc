#include "flashstep/comm/launch.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {
namespace {

struct Launched {
  int code = -1;
  double seconds = 0;
  std::string out, err;
};

std::string content(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  return text;
}

// Runs `script` as `ranks` shells.
Launched launch_shell(int ranks, const std::string& script, double stop_seconds = 30) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::tmpfile(), std::fclose);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> err(std::tmpfile(), std::fclose);
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.stop_seconds = stop_seconds;
  options.out = fileno(out.get());
  options.err = fileno(err.get());
  const auto start = std::chrono::steady_clock::now();
  Launched launched;
  launched.code = launch(options);
  launched.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  launched.out = content(out.get());
  launched.err = content(err.get());
  return launched;
}

// The same with two, and a SIGTERM when they have come to their traps, or several.
Launched launch_and_interrupt(const std::string& script, int signals = 1,
                              double stop_seconds = 30) {
  sigset_t signals_taken, before;  // blocked in both threads: the launcher's descriptor gets them
  sigemptyset(&signals_taken);
  sigaddset(&signals_taken, SIGTERM);
  sigaddset(&signals_taken, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &signals_taken, &before);
  std::thread interrupter([signals] {
    for (int i = 0; i < signals; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      kill(getpid(), SIGTERM);
    }
  });
  Launched launched = launch_shell(2, script, stop_seconds);
  interrupter.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return launched;
}

TEST(Launch, TellsRanksWhoTheyAreAndLabelsWhatTheySay) {
  const Launched launched = launch_shell(
      3,
      "echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR\";"
      "echo complaint >&2; printf 'no newline'");
  EXPECT_EQ(launched.code, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string label = str("[rank ", rank, "] ");
    EXPECT_TRUE(contains(launched.out, str(label, rank, " of 3, ", rank, " of 3 at 127.0.0.1\n")))
        << launched.out;
    EXPECT_TRUE(contains(launched.out, label + "no newline\n")) << launched.out;
    EXPECT_TRUE(contains(launched.err, label + "complaint\n")) << launched.err;
  }
}

TEST(Launch, PassesLongOutputOn) {
  const Launched launched = launch_shell(2, "seq 1 20000");
  EXPECT_EQ(launched.code, 0);
  for (const char* line : {"[rank 0] 20000\n", "[rank 1] 20000\n", "[rank 1] 12345\n"}) {
    EXPECT_TRUE(contains(launched.out, line)) << line;
  }
}

// `flashstep launch ... | head`: the ranks work on, and end as any program does when they
// themselves write to a closed pipe.
TEST(Launch, WhoeverReadsMayLeave) {
  const auto before = std::signal(SIGPIPE, SIG_DFL);  // whoever started this test may ignore it
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", "echo one; sleep 0.3; echo two; exit 7"};
  options.out = options.err = ends[1];
  EXPECT_EQ(launch(options), 7);
  close(ends[1]);
  EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_DFL) << "launch() gives back what it changed";
  const Launched launched = launch_shell(1, "kill -PIPE $$; echo deaf");
  std::signal(SIGPIPE, before);
  EXPECT_TRUE(contains(launched.err, "was killed by SIGPIPE")) << launched.err << launched.out;
}

// The terminal may be closed, too: what is written to it then is an input/output error.
TEST(Launch, ATerminalMayBeClosed) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);  // the side of its window
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  LaunchOptions options;
  options.command = {"sh", "-c", "echo one; sleep 0.5; echo two"};
  options.out = options.err = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(options.out, 0);
  std::jthread window([&] {
    char first;
    EXPECT_EQ(read(terminal, &first, 1), 1);
    close(terminal);
  });
  EXPECT_EQ(launch(options), 0);
  window.join();
  EXPECT_EQ(write(options.out, "x", 1), -1);
  EXPECT_EQ(errno, EIO);
  close(options.out);
}

TEST(Launch, OutputThatIsLostIsAFailure) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  LaunchOptions options;
  options.ranks = 2;
  options.out = full;
  options.command = {"sh", "-c", "echo one"};
  try {
    launch(options);
    ADD_FAILURE() << "expected a MachineError";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(),
                 "[launch] the ranks' output could not be written: No space left on device");
  }
  options.command = {"sh", "-c", "echo one; exit 7"};  // what is worse comes first
  EXPECT_EQ(launch(options), 7);
  close(full);
}

TEST(Launch, ReturnsTheFirstFailuresCodeAndStopsTheOthers) {
  const Launched launched = launch_shell(
      3,
      "if [ $RANK = 1 ]; then sleep 0.3; echo 'flashstep: [loop] no space left' >&2; exit 2; fi;"
      "sleep 100");
  EXPECT_EQ(launched.code, 2);
  EXPECT_LT(launched.seconds, 10);
  EXPECT_TRUE(contains(launched.err, "flashstep: [launch] rank 1 of 3 (process ")) << launched.err;
  EXPECT_TRUE(contains(launched.err,
                       ") ended with exit code 2: [loop] no space left; stopping the other ranks"))
      << launched.err;
  EXPECT_FALSE(contains(launched.err, "rank 0 of 3")) << "only the first failure is told";
}

TEST(Launch, AKilledRankIsTheMachinesFailure) {
  const Launched launched = launch_shell(2, "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 100");
  EXPECT_EQ(launched.code, 1);
  EXPECT_TRUE(contains(launched.err, "rank 0 of 2")) << launched.err;
  EXPECT_TRUE(contains(launched.err, "was killed by SIGKILL")) << launched.err;
}

TEST(Launch, StoppedAndDeafRanksAreKilled) {
  const Launched launched =
      launch_shell(3,
                   "case $RANK in 0) sleep 0.5; exit 1;; 1) kill -STOP $$;; 2) trap '' TERM;; esac;"
                   "while true; do sleep 0.1; done",
                   0.5);
  EXPECT_EQ(launched.code, 1);
  EXPECT_LT(launched.seconds, 10);
}

TEST(Launch, ByDefaultRanksHaveTheTimeToSayWhoIsLost) {
  const Timeouts timeouts;
  EXPECT_GT(std::chrono::duration<double>(LaunchOptions().stop_seconds),
            timeouts.silence + timeouts.grace);
}

TEST(Launch, ForwardsSignals) {
  // As train does: save, then end with 128 + signal; one rank needs longer.
  const Launched launched = launch_and_interrupt(
      "trap 'sleep 0.$RANK; echo saved; exit 143' TERM; while true; do sleep 0.05; done");
  EXPECT_EQ(launched.code, 143);
  EXPECT_TRUE(contains(launched.out, "[rank 0] saved\n")) << launched.out;
  EXPECT_TRUE(contains(launched.out, "[rank 1] saved\n")) << launched.out;
  EXPECT_FALSE(contains(launched.err, "[launch]")) << launched.err;  // that was no failure
}

// One rank was not ready to save when the signal came; the other one cannot go on without it.
TEST(Launch, AnInterruptedStartIsNoFailure) {
  const Launched launched = launch_and_interrupt(
      "if [ $RANK = 1 ]; then sleep 100; fi; trap 'sleep 0.5; echo lost rank 1 >&2; exit 1' TERM;"
      "while true; do sleep 0.05; done");
  EXPECT_EQ(launched.code, 143);
  EXPECT_TRUE(contains(launched.err, "[rank 0] lost rank 1\n")) << launched.err;
  EXPECT_FALSE(contains(launched.err, "[launch]")) << launched.err;
}

TEST(Launch, TheFirstSignalLeavesTheTimeToSave) {
  const Launched launched = launch_and_interrupt(
      "trap 'sleep 1; echo saved; exit 143' TERM; while true; do sleep 0.05; done", 1, 0.1);
  EXPECT_EQ(launched.code, 143);
  EXPECT_TRUE(contains(launched.out, "[rank 1] saved\n")) << launched.out;
}

TEST(Launch, TheSecondSignalKillsTheDeaf) {
  const Launched launched =
      launch_and_interrupt("trap '' TERM; for i in $(seq 100); do sleep 0.1; done", 2, 0.5);
  EXPECT_EQ(launched.code, 143);
  EXPECT_LT(launched.seconds, 8);
  EXPECT_FALSE(contains(launched.err, "[launch]")) << launched.err;
}

// Until it has ended, at most 5 s; what is left of a process may be a zombie for a moment.
bool ends(pid_t process) {
  for (int i = 0; i < 500; ++i) {
    std::ifstream file(str("/proc/", process, "/stat"));
    std::string stat;
    if (!std::getline(file, stat) || stat.find(") Z ") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// The number behind `word` in what ranks printed.
pid_t process_behind(const std::string& word, const std::string& text) {
  const size_t at = text.find(word);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + word.size());
}

// As the processes that load a rank's data: of a rank that has failed, too.
TEST(Launch, AFailedRanksOwnChildrenEndWithTheJob) {
  const Launched launched = launch_shell(
      2,
      "if [ $RANK = 0 ]; then sleep 100; fi; sleep 100 & echo heeds $!;"
      "sh -c 'trap \"\" TERM; echo deaf $$; while true; do sleep 0.1; done' & sleep 0.5; exit 3");
  EXPECT_EQ(launched.code, 3);
  EXPECT_LT(launched.seconds, 10);
  for (const char* word : {"heeds ", "deaf "}) {
    const pid_t child = process_behind(word, launched.out);
    ASSERT_GT(child, 0) << launched.out;
    EXPECT_TRUE(ends(child)) << word;
    kill(child, SIGKILL);
  }
}

// They are asked, and get a moment: to remove shared memory, say.
TEST(Launch, AFailedRanksOwnChildrenMayTidyUp) {
  const std::string tidied = str("/tmp/flashstep-launch-tidied-", getpid());
  const Launched launched =
      launch_shell(1, str("(trap 'sleep 0.3; touch ", tidied,
                          "; exit' TERM; while true; do sleep 0.05; done) & sleep 0.5; exit 3"));
  EXPECT_EQ(launched.code, 3);
  EXPECT_LT(launched.seconds, 10);
  EXPECT_EQ(unlink(tidied.c_str()), 0);
}

// What a rank that went well leaves behind on purpose stays.
TEST(Launch, WhatAGoodJobLeavesRunningStays) {
  const Launched launched = launch_shell(1, "sleep 100 >&- 2>&- & echo stays $!");
  EXPECT_EQ(launched.code, 0);
  const pid_t child = process_behind("stays ", launched.out);
  ASSERT_GT(child, 0) << launched.out;
  EXPECT_EQ(kill(child, SIGKILL), 0);
}

TEST(Launch, SaysWhatCannotBeStarted) {
  LaunchOptions options;
  options.command = {"/no/such/program"};
  try {
    launch(options);
    FAIL() << "expected a UserError";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "[launch] cannot start /no/such/program: No such file or directory");
  }
  options.command = {"/dev/null"};  // not executable
  EXPECT_THROW(launch(options), UserError);
  options.ranks = 0;
  EXPECT_THROW(launch(options), UserError);
}

}  // namespace
}  // namespace flashstep
