#include "flashstep/report/rank_jobs.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/group.h"

namespace flashstep::report {
namespace {

// The contestant that had begun when the results ended; empty if none had.
std::string last_begun(const std::vector<std::string>& results) {
  for (auto line = results.rbegin(); line != results.rend(); ++line) {
    const auto json = nlohmann::json::parse(*line);
    if (json.contains("begins")) return json["begins"];
  }
  return "";
}

std::string describe_failure(const std::string& sentence) {
  const bool memory = sentence.find("out of memory") != std::string::npos;
  return (memory ? "OOM: " : "failed: ") + sentence;
}

}  // namespace

void begin_contestant(const std::string& contestant, const comm::Group& group) {
  hand_over(nlohmann::json({{"begins", contestant}}).dump());
  group.barrier("beginning " + contestant);
}

JobResults run_contestants(
    RankJob job, std::vector<std::string> contestants,
    const std::function<std::string(const std::vector<std::string>& contestants)>& task_of) {
  JobResults all;
  while (!contestants.empty()) {
    job.task = task_of(contestants);
    RanksOutcome outcome;
    try {
      outcome = run_ranks(job);
    } catch (const Interrupted& interrupted) {
      all.signal = interrupted.signal();
      return all;
    }
    // What a mistake of the caller's is stays one.
    if (outcome.exit_code == 2) throw UserError(outcome.failure);
    const std::string failed = outcome.failure.empty() ? "" : last_begun(outcome.results);
    if (failed.empty() && !outcome.failure.empty()) throw MachineError(outcome.failure);
    if (failed.empty()) {
      all.handed_over.insert(all.handed_over.end(), outcome.results.begin(), outcome.results.end());
      return all;
    }
    all.failures.push_back({failed, describe_failure(outcome.failure)});
    std::erase(contestants, failed);
  }
  return all;
}

RankJob job_of(const std::string& command, const ParallelCase& c, const TellProgress& progress) {
  RankJob job;
  job.ranks = static_cast<int>(c.ranks);
  job.arguments = {"bench", command};
  job.progress = [name = describe(c), progress](const std::string& line) {
    if (progress) progress(name + ": " + line);
  };
  return job;
}

}  // namespace flashstep::report
