#include "flashstep/profiling.h"

#include <string>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

class Recorder : public RangeListener {
 public:
  void begin_range(const char* name) override { heard += std::string("(") + name; }
  void end_range() override { heard += ")"; }
  std::string heard;
};

TEST(Ranges, NestedRangesAreHeardInOrder) {
  Recorder recorder;
  {
    const ScopedRange unheard("before");
    listen_to_ranges(&recorder);  // must not hear the end of a range whose begin it missed
  }
  {
    const ScopedRange step("step");
    const ScopedRange forward("forward");
    listen_to_ranges(nullptr);  // both ends are still heard
  }
  const ScopedRange after("after");
  EXPECT_EQ(recorder.heard, "(step(forward))");
}

}  // namespace
}  // namespace flashstep
