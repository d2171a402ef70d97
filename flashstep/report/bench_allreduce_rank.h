// What each rank of `flashstep bench allreduce` does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_allreduce_cases.h"

namespace flashstep::report {

struct AllreduceTask {
  std::vector<AllreduceCase> cases;  // of one transport and number of ranks
  double cell_seconds = 1;           // for the timed calls of one implementation and case
  bool quick = false;                // one short turn: only to see that all runs
};
std::string to_json(const AllreduceTask& task);
AllreduceTask task_from_json(const std::string& text);

// Measures the cases in turn as one of `task.cases[0].ranks` ranks. Every rank calls it; `report`
// gets the records of each, on rank 0 of interest only: samples in seconds of a call, "seconds" of
// calls one after the other and "alone" from its launch to its end, nothing else being under way;
// the fact "wrong", of elements on all ranks.
void measure_allreduce(const AllreduceTask& task,
                       const std::function<void(const std::vector<Record>&)>& report);

}  // namespace flashstep::report
