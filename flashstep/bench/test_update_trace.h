// What holds of every update that is cut out of its step, on any device.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "flashstep/bench/replica.h"

namespace flashstep::tools {

// Without shards all that is sent is sent in backward, which the trace of an update leaves out.
// Only the first rank is traced.
inline void expect_updates_cut_out(Replica& replica, const std::string& wrapper, bool is_first) {
  for (const char* shards : {"none", "whole", "flat"}) {
    ParallelConfig division = division_by_name(wrapper);
    division.shard_optimizer = shards;
    replica.divide(division);
    replica.run(3);
    const UpdateTrace update = replica.trace_update();
    EXPECT_GT(update.host_seconds, 0) << shards;
    EXPECT_EQ(update.trace.failure, "") << shards;
    if (!is_first) continue;
    EXPECT_EQ(update.trace.communication.empty(), std::string(shards) == "none") << shards;
    EXPECT_GT(update.trace.compute_seconds(), 0) << shards;
    EXPECT_LE(update.trace.busy_seconds(), update.seconds + 1e-9) << shards;
    if (replica.device().is_cpu()) {  // whose marks are operators of the trace
      EXPECT_NEAR(update.trace.seconds(), update.seconds, 1e-9) << shards;
    }
  }
}

}  // namespace flashstep::tools
