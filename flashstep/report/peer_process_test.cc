#include "flashstep/report/peer_process.h"

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::report {
namespace {

TEST(PeerProcess, AnswersLineByLine) {
  PeerProcess echo({"sh", "-c", "echo ready; while read line; do echo \"got $line\"; done"});
  EXPECT_EQ(echo.read_line(), "ready");
  EXPECT_EQ(echo.ask("one"), "got one");
  EXPECT_EQ(echo.ask("two words"), "got two words");
}

TEST(PeerProcess, TellsWhenItEnded) {
  PeerProcess brief({"sh", "-c", "exit 3"});
  EXPECT_EQ(brief.read_line(), std::nullopt);
  EXPECT_EQ(brief.ask("anyone?"), std::nullopt);
}

TEST(PeerProcess, TellsWhenThereIsNoSuchProgram) {
  EXPECT_THROW(PeerProcess({"/no/such/program"}), MachineError);
}

}  // namespace
}  // namespace flashstep::report
