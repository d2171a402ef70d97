// Records that ranks measure: one unit after the other on the same ranks, of which some may fail.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/record.h"

namespace flashstep::report {

struct RankWork {
  RankJob job;  // its task is made for the units that are to be measured
  std::function<std::string(const std::vector<std::string>& units)> task_of;
  // The unit that a record belongs to; empty: its implementation.
  std::function<std::string(const Record&)> unit_of = nullptr;
};

// `blanks` with what rank 0 handed over (hand_over_record) or what became of their unit: where the
// ranks fail, the unit that had begun is left out, and the ranks are started once more for the
// others; all are left out where none had begun. Interrupted by a signal; MachineError when they
// cannot be started.
std::vector<Record> measure_on_ranks(const RankWork& work, std::vector<Record> blanks);

// A case in a process of its own, of `program` by its command: what it handed over, and what became
// of it. Interrupted by a signal.
struct OwnProcess {
  std::vector<std::string> results;
  Outcome outcome;
};
OwnProcess run_own_process(const std::vector<std::string>& command, const std::string& task,
                           const std::string& program);

// In a rank, before it measures a unit: rank 0 says so, and no rank goes on before, so that it is
// known which one a rank failed in.
void begin_unit(const std::string& unit, const Group& group);
// In rank 0: a part of the blank of this implementation, and of this key unless that is empty.
void hand_over_record(const Record& record);

}  // namespace flashstep::report
