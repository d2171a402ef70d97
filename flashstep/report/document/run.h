// Runs the measurements of a report: those that have a result are left, the others become child
// processes of this program, one after the other.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/document/result.h"

namespace flashstep::report {

struct RunOptions {
  std::filesystem::path directory;  // of the report
  std::vector<std::string> program = {"/proc/self/exe"};
  MeasuredVersion version;
  measure::Machine machine;
  // A result of another machine will do, if the same sources made it by the same command: where
  // machines come and go, each measures what is left.
  bool any_machine = false;
  // Nothing is begun that is expected to end later than so many seconds from the start; 0: all is.
  double most_seconds = 0;
  // While it measures: expected seconds of what is done, and of all; what is being done.
  std::function<void(double done, double total, const std::string& note)> progress;
  std::function<void(const Result& result)> finished;  // gets each, once it is on the disk
};

struct RunOutcome {
  int64_t measured = 0, reused = 0;
  std::vector<std::string> failed;  // "ddp_2025: ended with exit code 1: out of memory"
  std::vector<std::string> later;   // not begun: "ddp_2025: expected to take 500 s"
  std::vector<std::string> keys;    // of all measurements that were asked for
  int signal = 0;                   // came before the end
};

// Every result is on the disk before the next measurement begins. One that fails leaves a result
// that says so, and the next one follows. A damaged result file is renamed to FILE.damaged and
// measured anew. MachineError where the results cannot be written.
RunOutcome run_measurements(const std::vector<Measurement>& measurements,
                            const RunOptions& options);

}  // namespace flashstep::report
