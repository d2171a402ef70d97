#include "flashstep/base/subprocess.h"

#include <csignal>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"

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

}  // namespace
}  // namespace flashstep
