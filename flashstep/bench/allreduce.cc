#include "flashstep/bench/allreduce.h"

#include <algorithm>
#include <optional>

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {
namespace {

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

std::vector<Record> allreduce_blanks(const std::vector<AllreduceCase>& cases) {
  std::vector<Record> blanks;
  for (const AllreduceCase& c : cases) {
    for (const char* name : {"flashstep", "bare"}) {
      Record& blank = blanks.emplace_back();
      blank.key = key_of(c);
      blank.what = describe(c);
      blank.implementation = name;
      blank.ours = blank.implementation == "flashstep";
    }
  }
  return blanks;
}

// Starts one job's ranks. A bare library that cannot be called has no record.
std::vector<Record> run_allreduce_job(const BenchAllreduceOptions& options,
                                      const std::vector<AllreduceCase>& cases, const Run& run) {
  RankWork work;
  work.job.ranks = static_cast<int>(cases.front().ranks);
  work.job.program = work.job.launcher = options.program;
  work.job.arguments = options.arguments;
  work.job.progress = [&](const std::string& line) { run.tell(line); };
  work.unit_of = [](const Record& record) { return record.what; };
  work.task_of = [&](const std::vector<std::string>& units) {
    std::vector<AllreduceCase> left = cases;
    std::erase_if(left, [&](const AllreduceCase& c) { return !contains(units, describe(c)); });
    return to_json(AllreduceTask{left, options.cell_seconds, options.quick});
  };
  std::vector<Record> records = measure_on_ranks(work, allreduce_blanks(cases));
  std::erase_if(records, [](const Record& r) { return !r.ours && !r.has("seconds"); });
  for (Record& record : records) {
    if (record.ours && record.number("wrong") > 0)
      record.fault = str("expected exact sums, got ", record.number("wrong"), " wrong elements");
  }
  return records;
}

}  // namespace

void run_allreduce_rank(const std::string& task) {
  measure_allreduce(task_from_json(task), [](const std::vector<Record>& records) {
    for (const Record& record : records) hand_over_record(record);
  });
}

BenchReport bench_allreduce(const BenchAllreduceOptions& options) {
  const std::vector<AllreduceCase> cases = cases_of(options.plan);
  const std::vector<measure::Gpu> gpus = measure::list_gpus();
  const Benchmark benchmark = allreduce_benchmark(options, links_of(cases, gpus));
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    const auto jobs = jobs_of(cases);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const AllreduceCase& c = jobs[i].front();
      run.begin(i, jobs.size(), str(c.backend, " ", c.device, " ", c.ranks, " ranks"));
      const std::string reason = obstacle(c, static_cast<int64_t>(gpus.size()));
      if (reason.empty()) {
        run.add(run_allreduce_job(options, jobs[i], run));
        continue;
      }
      std::vector<Record> records = allreduce_blanks(jobs[i]);
      std::erase_if(records, [](const Record& r) { return !r.ours; });
      for (Record& record : records) record.outcome = {Status::kRefused, reason};
      run.add(std::move(records));
    }
  });
}

}  // namespace flashstep::tools
