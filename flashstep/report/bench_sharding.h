// What dividing the optimizer's state between ranks saves and costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/parallel_case.h"
#include "flashstep/report/trace.h"

namespace flashstep::report {

// How one case is measured: the contestants are ways to divide the optimizer (sharding_by_name).
struct ShardingPlan {
  ParallelCase c;
  std::vector<std::string> contestants = {"none", "whole", "flat"};
  std::string wrapper = "bucketed";
  double bucket_megabytes = 0;  // chosen, as flashstep train does
  int64_t turns = 3, warmup = 3, steps = 5;
  bool traced = true;
  void visit(FieldVisitor& visitor);
};

struct BenchShardingOptions {
  ParallelAxes axes;
  ShardingPlan plan;  // its case is replaced by each of the axes'
  std::function<void(const std::string& line)> progress;
};
// "none", "whole", "flat", as parallel.shard_optimizer names them; behind it "nccl": with
// parallel.peer_copies none; "flat scattered": with parallel.flat_buckets, so that gradients are
// reduce-scattered. UserError for another name.
ParallelConfig sharding_by_name(const std::string& name);
std::vector<std::string> sharding_names();

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
  std::string buckets;                   // in words; empty: nothing is averaged
  std::string gradients_transport;       // "NCCL", "copies", "Gloo"
  std::string updates_transport;         // empty: nothing is sent
  Trace update;                          // of rank 0; its times are Replica::trace_update's
  double update_seconds = -1, host_seconds = -1;  // -1: not traced
  std::string trouble;

  bool has_times() const { return !total.empty(); }
  bool is_traced() const { return update_seconds >= 0 && update.trouble.empty(); }
  double exposed_share() const { return 1 - update.hidden_share(); }  // NaN: nothing is sent
  double idle_seconds() const;                                        // neither runs
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
// What each sharded update takes its time for, beside the one without shards.
std::vector<std::string> sharding_reasons(const std::vector<ShardingResult>& results);
std::vector<NamedPicture> sharding_pictures(const std::vector<ShardingResult>& results,
                                            const std::string& footnote);

}  // namespace flashstep::report
