#include "flashstep/base/signals.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using ::testing::KilledBySignal;

TEST(SignalsTest, TheFirstSignalIsRememberedASecondOneLaterEnds) {
  SignalGuard guard;
  EXPECT_EQ(SignalGuard::received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(SignalGuard::received(), SIGTERM);
  const auto raise_later = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(raise_later(), KilledBySignal(SIGTERM), "");
}

// timeout(1) signals its child and then the group that the child is in.
TEST(SignalsTest, TheSameSignalAtOnceIsTheSameRequest) {
  SignalGuard guard;
  for (const int signal : {SIGTERM, SIGTERM, SIGINT, SIGINT, SIGINT}) std::raise(signal);
  EXPECT_EQ(SignalGuard::received(), SIGINT);
}

TEST(SignalsTest, WithoutAGuardTheProcessEndsWithASentence) {
  const auto end = [](int signal) {
    end_with_a_sentence("program");
    std::raise(signal);
  };
  EXPECT_EXIT(end(SIGINT), KilledBySignal(SIGINT), "^program: stopped by Ctrl-C\n$");
  EXPECT_EXIT(end(SIGHUP), KilledBySignal(SIGHUP), "stopped by SIGHUP .the terminal was closed");
}

TEST(SignalsTest, WhatAGuardHasReceivedEndsNothingBehindIt) {
  const auto end = [] {
    end_with_a_sentence("program");
    {
      const SignalGuard guard;
      std::raise(SIGTERM);
    }
    std::raise(SIGTERM);
    ::_exit(SignalGuard::received());
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(SIGTERM), "^$");
}

TEST(SignalsTest, FilesThatWereBegunAreRemoved) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / str("signals_test_", ::getpid());
  std::filesystem::create_directories(folder);
  const auto end = [&] {
    end_with_a_sentence("program");
    write_file(folder / "whole", "kept");
    AtomicFile file(folder / "begun");
    file.write("half");
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(end(), KilledBySignal(SIGTERM),
              "^program: stopped by SIGTERM; what it was writing is removed\n$");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_EQ(read_file(folder / "whole"), "kept");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace flashstep
