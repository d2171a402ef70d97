#include "flashstep/base/subprocess.h"

#include <csignal>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// More than a pipe holds, on both streams.
TEST(Subprocess, ReadsWhatItsChildPrintsToTheEnd) {
  Subprocess child({.command = {"sh", "-c",
                                "echo first; yes | head -n 200000; yes | head -n 200000 >&2; "
                                "echo last; exit 3"}});
  EXPECT_EQ(child.read_line(), "first");
  const std::vector<std::string> lines = child.lines_to_end();
  ASSERT_EQ(lines.size(), 200'001U);
  EXPECT_EQ(lines.front(), "y");
  EXPECT_EQ(lines.back(), "last");
  EXPECT_EQ(exit_code(child.status()), 3);
}

TEST(Subprocess, ASignalEndsTheReading) {
  const SignalGuard guard;
  Subprocess child({.command = {"sleep", "1000"}});
  std::raise(SIGTERM);
  EXPECT_THROW(child.lines_to_end(), Interrupted);
}

// Where a process may open no more files.
TEST(Subprocess, WhatCannotBeStartedLeavesNothingOpen) {
  const auto next_descriptor = [] {
    const int next = ::dup(STDOUT_FILENO);
    ::close(next);
    return next;
  };
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first = next_descriptor();
  for (const rlim_t room : {1, 3, 5, 7}) {
    const rlimit few = {static_cast<rlim_t>(first) + room, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_THROW(start_child({.command = {"true"}, .has_input = true}), MachineError);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(next_descriptor(), first) << room;
  }
}

}  // namespace
}  // namespace flashstep
