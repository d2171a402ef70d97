// A benchmark of several processes starts its own ranks, and gets back what rank 0 measured.
//
// It runs `flashstep launch -n N -- ARGUMENTS`, ARGUMENTS being its own command once more; there
// rank_task() has what shall be measured. A job of one rank is started without the launcher.
//
// Rank 0 hands over one result after the other, so that what was measured before a failure (memory
// that is too small, a lost rank) is kept.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "flashstep/base/subprocess.h"
#include "flashstep/bench/schema.h"

namespace flashstep {
class Group;  // comm/group.h
}

namespace flashstep::tools {

struct RankJob {
  int ranks = 2;
  std::vector<std::string> arguments;       // after the program's name, the same for every rank
  std::string task;                         // less than 100 kB
  std::string program = "/proc/self/exe";   // what each rank runs; with a slash in it
  std::string launcher = "/proc/self/exe";  // a flashstep, for its command `launch`
  // Get what rank 0 told, and what it handed over, in order, as it comes; may be empty.
  std::function<void(const std::string& line)> progress;
  std::function<void(const std::string& result)> result;
};

// Returns when all ranks have ended: measured when all did with 0, else as outcome_of_ranks() says.
// What else they print goes to our stderr as it comes. A SIGINT or SIGTERM, while a SignalGuard is
// alive, stops the ranks and becomes Interrupted. MachineError if they cannot be started.
Outcome run_ranks(const RankJob& job);

// In a rank: its task; nothing in a process that run_ranks did not start.
std::optional<std::string> rank_task();
// In rank 0 of a job (does nothing in the others): texts without a line break.
void hand_over(const std::string& result);
void tell_progress(const std::string& line);

// The group of a rank's job, on "cpu" or "cuda" with "gloo" or "nccl"; the rank's GPU becomes the
// current one. Gloo's ranks share GPUs where there are fewer; NCCL's cannot: UserError.
std::unique_ptr<Group> make_rank_group(const std::string& backend, const std::string& device);

// Records that ranks measure: one unit after the other on the same ranks, of which some may fail.
// `blanks` with what rank 0 handed over (hand_over_record) or what became of their unit: where the
// ranks fail, the unit that had begun is left out, and the ranks are started once more for the
// others; all are left out where none had begun. The job's task is `task_of` the units that are
// left; a record's unit, without `unit_of`, is its implementation. Interrupted by a signal;
// MachineError when the ranks cannot be started.
std::vector<Record> measure_on_ranks(
    RankJob job, const std::function<std::string(const std::vector<std::string>& units)>& task_of,
    std::vector<Record> blanks,
    const std::function<std::string(const Record&)>& unit_of = implementation_of);

// A case in a process of its own, of `program` by its command: what became of it. `result` gets
// what it hands over. Interrupted by a signal.
Outcome run_own_process(const std::vector<std::string>& command, const std::string& task,
                        const std::string& program,
                        const std::function<void(const std::string& result)>& result);

// In a rank, before it measures a unit: rank 0 says so, and no rank goes on before, so that it is
// known which one a rank failed in.
void begin_unit(const std::string& unit, const Group& group);
// In rank 0: a part of the blank of this implementation, and of this key unless that is empty.
void hand_over_record(const Record& record);

// A baseline in a Python process, which takes turns with ours: one JSON object a line there, one
// back. It says a line when it is ready.
class PythonPeer {
 public:
  explicit PythonPeer(std::vector<std::string> command) : command_(std::move(command)) {}

  // Starts it where it does not run; `more` is added to the request. UserError where there is no
  // such program or it does not become ready; MachineError where it ends, answers with no object,
  // or with {"error": its reason}.
  nlohmann::json ask(nlohmann::json request, const nlohmann::json& more);
  // The same, where it runs; nothing that it says is an error.
  void tell_if_running(const nlohmann::json& request);
  // As Implementation::turn() (turns.h).
  std::vector<double> turn(const nlohmann::json& request, const std::string& pass, int64_t warmup,
                           int64_t samples, int64_t calls);

 private:
  void start();

  std::vector<std::string> command_;
  std::unique_ptr<Subprocess> process_;
  std::string failure_;  // why it cannot be started
};

}  // namespace flashstep::tools
