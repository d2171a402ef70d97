// What ranks print while nobody reads it, or slowly: the launcher hears signals and sees ranks end.
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/launch.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A pipe that is read when a test says so.
class SleepyReader {
 public:
  SleepyReader() {
    if (pipe2(ends_, O_CLOEXEC) != 0) throw_errno(errno, "pipe2");
  }
  ~SleepyReader() {
    close(ends_[0]);
    close_writing();
  }
  SleepyReader(const SleepyReader&) = delete;
  SleepyReader& operator=(const SleepyReader&) = delete;

  int writing() const { return ends_[1]; }
  void close_writing() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  // One read; empty at the end.
  std::string read_some() {
    char bytes[8192];
    const ssize_t count = read(ends_[0], bytes, sizeof bytes);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(0, count))};
  }
  std::string read_to_end(milliseconds pause = milliseconds(0)) {
    std::string text;
    for (std::string some; !(some = read_some()).empty(); text += some)
      std::this_thread::sleep_for(pause);
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

LaunchOptions shells(int ranks, const std::string& script, int out) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.out = out;
  return options;
}

// As text, of a file that launch() wrote.
std::string content_of(int file) {
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

class LaunchOutput : public ::testing::Test {
 protected:
  LaunchOutput() {  // in a test's threads, too, so that the launcher's descriptor gets them
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~LaunchOutput() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // launch(), and a SIGTERM after 0.7 s. Whoever hangs is read out after 15 s.
  void launch_and_interrupt(const LaunchOptions& options) {
    const auto begin = Clock::now();
    std::jthread others([&](const std::stop_token& stop) {
      std::this_thread::sleep_for(milliseconds(700));
      kill(getpid(), SIGTERM);
      while (!stop.stop_requested() && Clock::now() - begin < std::chrono::seconds(15))
        std::this_thread::sleep_for(milliseconds(20));
      if (!stop.stop_requested()) reader_.read_to_end();
    });
    code_ = launch(options);
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
    others.request_stop();
    reader_.close_writing();
  }

  SleepyReader reader_;
  int code_ = -1;
  double seconds_ = 0;

 private:
  sigset_t before_;
};

constexpr const char* kPrintForEver = "while true; do echo something that fills a pipe; done";

TEST_F(LaunchOutput, ASignalIsAnsweredWhileNobodyReads) {
  launch_and_interrupt(shells(2, kPrintForEver, reader_.writing()));
  EXPECT_EQ(code_, 143);
  EXPECT_LT(seconds_, 10);
}

// They cannot end before they have printed what they print.
TEST_F(LaunchOutput, RanksThatSaveAndPrintEndWhileNobodyReads) {
  launch_and_interrupt(shells(
      2, "trap 'seq 1 400000; exit 143' TERM; while true; do sleep 0.05; done", reader_.writing()));
  EXPECT_EQ(code_, 143);
  EXPECT_LT(seconds_, 12);
}

TEST_F(LaunchOutput, ASignalIsAnsweredWhileARankPrintsWithoutEnd) {
  const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
  launch_and_interrupt(shells(1, "trap '' PIPE; yes", nothing));
  close(nothing);
  EXPECT_EQ(code_, 143);
  EXPECT_LT(seconds_, 5);
}

TEST_F(LaunchOutput, AFailedRankIsSeenWhileNobodyReads) {
  const std::string script =
      str("if [ $RANK = 1 ]; then sleep 0.5; exit 7; fi; echo $$ >&2; ", kPrintForEver);
  LaunchOptions options = shells(2, script, reader_.writing());
  char name[] = "/tmp/flashstep-launch-XXXXXX";
  const int err = options.err = mkstemp(name);
  unlink(name);
  std::string said_before;
  std::jthread reader([&] {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    said_before = content_of(err);
    reader_.read_to_end();
  });
  EXPECT_EQ(launch(options), 7);
  reader_.close_writing();
  reader.join();
  EXPECT_TRUE(contains(said_before, "ended with exit code 7; stopping the other ranks"))
      << said_before;
  close(err);
}

TEST_F(LaunchOutput, ASlowReaderGetsAllOfIt) {
  constexpr int kLines = 300'000;
  std::string text;
  std::jthread reader([&] { text = reader_.read_to_end(milliseconds(1)); });
  // Ranks end before the last is read, and the last line has no end of its own.
  EXPECT_EQ(launch(shells(2, str("seq 1 ", kLines, "; printf last"), reader_.writing())), 0);
  reader_.close_writing();
  reader.join();
  std::map<std::string, int> next = {{"[rank 0] ", 1}, {"[rank 1] ", 1}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string label = line.substr(0, 9);
    ASSERT_TRUE(next.contains(label)) << line;
    const int expected = next[label]++;
    ASSERT_EQ(line.substr(9), expected > kLines ? "last" : std::to_string(expected));
  }
  for (const auto& [label, line] : next) EXPECT_EQ(line, kLines + 2) << label;
}

// Both streams in one pipe, as with 2>&1: no line gets into another.
TEST_F(LaunchOutput, LinesOfBothStreamsStayWhole) {
  const std::string print = "while [ $i -lt 200 ]; do seq -s , 1 2000; i=$((i + 1)); done";
  LaunchOptions options =
      shells(2, str("i=0; ", print, "& i=0; (", print, ") >&2; wait"), reader_.writing());
  options.err = dup(options.out);
  std::string text;
  std::jthread reader([&] { text = reader_.read_to_end(); });
  EXPECT_EQ(launch(options), 0);
  close(options.err);
  reader_.close_writing();
  reader.join();
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_TRUE(line.starts_with("[rank ") && line.substr(8, 5) == " 1,2," && line.size() == 8901)
        << line;
  }
  EXPECT_EQ(count, 800);
}

}  // namespace
}  // namespace flashstep
