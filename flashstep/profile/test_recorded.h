// For tests of profiles: steps under the profiler, and sums by pass and class.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/measure/profiler_ranges.h"
#include "flashstep/profile/profile_sums.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {

inline TraceEvents recorded(const Workload& workload, int64_t steps, const std::string& file = "") {
  ModelRun run(workload);
  run.pass();
  const measure::ProfilerRanges listening;
  const auto work = [&] {
    for (int64_t i = 0; i < steps; ++i) {
      const ScopedRange range("step");
      run.pass();
      synchronize(run.device());
    }
  };
  return record(run.device(), work, file);
}

template <typename Visit>
void for_each_pass_and_class(const Visit& visit) {
  for (int i = 0; i < kPasses; ++i) {
    for (const WorkClass work_class : all_work_classes()) {
      const auto pass = static_cast<Pass>(i);
      SCOPED_TRACE(str(pass_name(pass), " ", class_name(work_class)));
      visit(CellFilter{.passes = {pass}, .classes = {work_class}});
    }
  }
}

}  // namespace flashstep::tools
