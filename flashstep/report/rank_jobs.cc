#include "flashstep/report/rank_jobs.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/group.h"
#include "flashstep/measure/memory.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;

// The unit that had begun when the results ended; empty if none had.
std::string last_begun(const std::vector<std::string>& results) {
  for (auto line = results.rbegin(); line != results.rend(); ++line) {
    const auto json = Json::parse(*line);
    if (json.contains("begins")) return json["begins"];
  }
  return "";
}

void take_results(const std::vector<std::string>& results, std::vector<Record>& records) {
  for (const std::string& line : results) {
    if (Json::parse(line).contains("begins")) continue;
    const Record part = record_from_json(line);
    for (Record& record : records) {
      const bool same = record.implementation == part.implementation &&
                        (part.key.empty() || part.key == record.key);
      if (same) record.take(part);
    }
  }
}

}  // namespace

void begin_unit(const std::string& unit, const Group& group) {
  hand_over(Json({{"begins", unit}}).dump());
  group.barrier("beginning " + unit);
}

void hand_over_record(const Record& record) { hand_over(to_json(record)); }

OwnProcess run_own_process(const std::vector<std::string>& command, const std::string& task,
                           const std::string& program) {
  RankJob job;
  job.ranks = 1;
  job.arguments = command;
  job.task = task;
  job.program = job.launcher = program;
  const auto kills = measure::oom_kills();
  RanksOutcome ended = run_ranks(job);
  OwnProcess process = {std::move(ended.results), {}};
  if (!ended.failure.empty())
    process.outcome = outcome_of_ranks(ended.failure, ended.exit_code, 1, kills);
  return process;
}

std::vector<Record> measure_on_ranks(const RankWork& work, std::vector<Record> blanks) {
  const auto unit_of = [&](const Record& record) {
    return work.unit_of ? work.unit_of(record) : record.implementation;
  };
  std::vector<std::string> units = Records(blanks).distinct(unit_of);
  RankJob job = work.job;
  while (!units.empty()) {
    job.task = work.task_of(units);
    const auto kills = measure::oom_kills();
    const RanksOutcome outcome = run_ranks(job);
    if (outcome.failure.empty()) {
      take_results(outcome.results, blanks);
      break;
    }
    const std::string begun = last_begun(outcome.results);
    const auto is_out = [&](const std::string& unit) { return begun.empty() || unit == begun; };
    for (Record& record : blanks) {
      const std::string unit = unit_of(record);
      if (is_out(unit) && std::find(units.begin(), units.end(), unit) != units.end())
        record.outcome = outcome_of_ranks(outcome.failure, outcome.exit_code, job.ranks, kills);
    }
    std::erase_if(units, is_out);
  }
  return blanks;
}

}  // namespace flashstep::report
