#include "flashstep/report/bench_allreduce.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/report/bench_allreduce_rank.h"
#include "flashstep/report/bench_ranks.h"

namespace flashstep::report {
namespace {

const char* kHowToReadAllreduce =
    "Time: a call of flashstep's all_reduce in place, the slowest rank's, calls one after "
    "the "
    "other; median of the samples with p10 and p90; alone: from one call's launch to its end. "
    "Algorithm bandwidth: bytes of one rank's buffer over the time; bus bandwidth: that times "
    "2 (n - 1) / n, as nccl-tests defines them. Bare: ncclAllReduce, or gloo::allreduce, in a loop "
    "of its own, in turns with ours in the same processes. Wrong: elements of the sum that differ "
    "from what is known beforehand, on all ranks.";

// Neighbouring cases of one transport and number of ranks: one job.
std::vector<std::vector<AllreduceCase>> jobs_of(const std::vector<AllreduceCase>& cases) {
  std::vector<std::vector<AllreduceCase>> jobs;
  for (const AllreduceCase& c : cases) {
    const bool same = !jobs.empty() && jobs.back().back().backend == c.backend &&
                      jobs.back().back().device == c.device && jobs.back().back().ranks == c.ranks;
    if (!same) jobs.emplace_back();
    jobs.back().push_back(c);
  }
  return jobs;
}

// Why a job cannot be started at all; empty if it can.
std::string obstacle(const AllreduceCase& c, int64_t gpus) {
  if (c.device == "cuda" && gpus == 0) return "needs a GPU";
  if (c.backend == "nccl" && c.ranks > gpus) return str("needs ", c.ranks, " GPUs");
  return "";
}

Links links_of(const std::vector<AllreduceCase>& cases, const std::vector<measure::Gpu>& gpus) {
  Links links;
  std::optional<Link> loopback;
  for (const AllreduceCase& c : cases) {
    const std::pair key(c.backend, c.device);
    if (links.contains(key)) continue;
    if (c.backend == "gloo") {
      if (!loopback) loopback = loopback_limit();
      links.emplace(key, *loopback);
    } else if (!gpus.empty()) {
      if (const auto nvlink = nvlink_limit(gpus.front().name)) links.emplace(key, *nvlink);
    }
  }
  return links;
}

// Starts one job's ranks and adds what came back; cases without a result get the failure.
void run_job(const BenchAllreduceOptions& options, const std::vector<AllreduceCase>& cases,
             const std::function<void(const std::string&)>& progress, BenchReport& report,
             std::vector<AllreduceResult>& results) {
  RankJob job;
  job.ranks = static_cast<int>(cases.front().ranks);
  job.program = job.launcher = options.program;
  job.arguments = options.arguments;
  job.task = to_json(AllreduceTask{cases, options.cell_seconds, options.quick});
  job.progress = progress;
  const RanksOutcome outcome = run_ranks(job);
  std::vector<AllreduceResult> found;
  for (const std::string& line : outcome.results) found.push_back(result_from_json(line));
  for (const AllreduceCase& c : cases) {
    const auto same = std::find_if(found.begin(), found.end(),
                                   [&](const AllreduceResult& result) { return result.c == c; });
    results.push_back(same != found.end() ? *same : AllreduceResult{c, {}, "failed"});
  }
  if (!outcome.failure.empty() && report.failure.empty())
    report.failure = "[bench allreduce] " + outcome.failure;
}

}  // namespace

void run_allreduce_rank(const std::string& task) {
  measure_allreduce(task_from_json(task),
                    [](const AllreduceResult& result) { hand_over(to_json(result)); });
}

BenchReport bench_allreduce(const BenchAllreduceOptions& options) {
  const std::vector<AllreduceCase> cases = cases_of(options.plan);
  const std::vector<measure::Gpu> gpus = measure::list_gpus();
  const double begin = measure::steady_seconds();
  const Links links = links_of(cases, gpus);
  BenchReport report;
  std::vector<AllreduceResult> results;
  std::string state;
  uint64_t started = 0;  // cases
  measure_until_failure(report, [&] {
    for (const auto& job : jobs_of(cases)) {
      const std::string reason = obstacle(job.front(), static_cast<int64_t>(gpus.size()));
      if (!reason.empty()) {
        for (const AllreduceCase& c : job) results.push_back({c, {}, reason});
        started += job.size();
        continue;
      }
      uint64_t next = started;
      const auto progress = [&](const std::string& note) {
        if (options.progress) options.progress(next++, cases.size(), note);
        if (job.front().device != "cuda") return;
        if (const auto now = measure::gpu_state()) state = measure::describe(*now);
      };
      run_job(options, job, progress, report, results);
      started += job.size();
    }
    if (options.progress) options.progress(cases.size(), cases.size(), "");
  });

  report.table = allreduce_table(results, links);
  report.table.title = "All-reduce";
  report.runs = allreduce_runs_table(results);
  auto& notes = report.table.notes;
  notes.push_back(kHowToReadAllreduce);
  for (const auto& [transport, link] : links) {
    notes.push_back(str("The link of ", transport.first, " on ", transport.second, ": ",
                        fixed(link.bytes_per_s / 1e9, 1), " GB/s one way; ", link.source, "."));
  }
  const std::string machine = measure::one_line(measure::describe_machine());
  notes.push_back(str(machine, state.empty() ? "" : "; during the run " + state, "; ",
                      human_seconds(measure::steady_seconds() - begin), "."));
  if (!report.failure.empty()) notes.push_back("Failed: " + report.failure);
  if (report.signal != 0) {
    notes.push_back(
        str("Interrupted: ", results.size(), " of ", cases.size(), " cases were measured."));
  }
  for (auto& sentence : allreduce_verdict(results)) notes.push_back(std::move(sentence));
  if (!options.quick) {
    report.pictures =
        allreduce_pictures(results, links, str("flashstep bench allreduce; ", machine));
  }
  return report;
}

}  // namespace flashstep::report
