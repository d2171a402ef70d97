#include "flashstep/report/rank_jobs.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/measure/memory.h"
#include "flashstep/report/case_memory.h"

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

}  // namespace

std::string describe_failure(const std::string& sentence, bool kernel_ended_one) {
  const bool was_killed = sentence.find("SIGKILL") != std::string::npos;
  const bool memory = is_out_of_memory(sentence) || (was_killed && kernel_ended_one);
  return (memory ? "OOM: " : "failed: ") + sentence;
}

void begin_contestant(const std::string& contestant, const Group& group) {
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
    const auto kills = measure::oom_kills();
    try {
      outcome = run_ranks(job);
    } catch (const Interrupted& interrupted) {
      all.signal = interrupted.signal();
      return all;
    }
    // What a mistake of the caller's is stays one.
    if (outcome.exit_code == 2) throw UserError(outcome.failure);
    if (outcome.failure.empty()) {
      all.handed_over.insert(all.handed_over.end(), outcome.results.begin(), outcome.results.end());
      return all;
    }
    const std::string begun = last_begun(outcome.results);
    for (const std::string& name : begun.empty() ? contestants : std::vector{begun})
      all.failures.push_back(
          {name, describe_failure(outcome.failure, measure::may_have_killed_since(kills))});
    std::erase_if(contestants, [&](const auto& name) { return begun.empty() || name == begun; });
  }
  return all;
}

void note_end(const JobResults& job, const ParallelCase& c, BenchReport& report) {
  report.signal = job.signal;
  for (const Failure& failure : job.failures) {
    if (!report.failure.empty() || failure.sentence.starts_with("OOM")) continue;
    report.failure = str("[bench] ", describe(c), ", ", failure.contestant, " ", failure.sentence);
  }
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
