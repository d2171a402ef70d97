// What dividing the optimizer's state between ranks saves and costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/parallel_case.h"

namespace flashstep::report {

// How one case is measured: the contestants are ways to divide the optimizer, as
// parallel.shard_optimizer names them.
struct ShardingPlan {
  ParallelCase c;
  std::vector<std::string> contestants = {"none", "whole", "flat"};
  std::string wrapper = "bucketed";
  double bucket_megabytes = 25;
  int64_t turns = 3, warmup = 3, steps = 5;
  void visit(FieldVisitor& visitor);
};

struct BenchShardingOptions {
  ParallelAxes axes;
  ShardingPlan plan;  // its case is replaced by each of the axes'
  std::function<void(const std::string& line)> progress;
};
// "2024", "2025", "2026"; UserError for another year.
BenchShardingOptions sharding_preset(const std::string& year);

// Bytes, of the rank with most.
struct ShardingMemory {
  double after_init = 0, before_step = 0, after_step = 0;  // peaks until then, since the beginning
  double parameters = 0, gradients = 0, state = 0;         // what of it is what, by its tensors
};
struct ShardingRun {
  std::string contestant;
  ShardingMemory memory;
  std::vector<double> optimizer, total;  // seconds, a value a step
  std::string trouble;

  bool has_times() const { return !total.empty(); }
};
struct ShardingResult {
  ParallelCase c;
  std::vector<ShardingRun> runs;
};

// In the process that was called, and in each rank that it started.
BenchReport bench_sharding(const BenchShardingOptions& options);
void bench_sharding_rank(const std::string& task);

// The parts of it.
ShardingResult sharding_result(const ShardingPlan& plan,
                               const std::vector<std::string>& handed_over);
measure::Table sharding_table(const std::vector<ShardingResult>& results, const ShardingPlan& plan);
std::vector<std::string> sharding_verdict(const std::vector<ShardingResult>& results);

}  // namespace flashstep::report
