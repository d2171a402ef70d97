#include "flashstep/measure/others_cpu.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/test_busy_children.h"

namespace flashstep::measure {
namespace {

using std::chrono::milliseconds;

TEST(CpuOfOthers, AreSeenAndOurOwnIsNot) {
  const int cores = describe_machine().cores;
  double beside_others = 0, quiet = 1;
  {
    const BusyChildren others(cores, milliseconds(0));
    const CpuOfOthers seen;
    std::this_thread::sleep_for(milliseconds(500));
    beside_others = seen.share();
  }
  EXPECT_GT(beside_others, 0.5);
  EXPECT_LE(beside_others, 1);
  // Ours alone; where somebody else keeps this machine busy there is a quieter moment, or none.
  for (int i = 0; i < 5 && quiet > 0.2; ++i) {
    const CpuOfOthers seen;
    const double end = steady_seconds() + 0.5;
    volatile unsigned work = 0;
    while (steady_seconds() < end) work = work + 1;
    quiet = seen.share();
  }
  EXPECT_LT(quiet, beside_others);
}

}  // namespace
}  // namespace flashstep::measure
