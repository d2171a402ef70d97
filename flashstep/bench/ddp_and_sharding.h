// Training steps of a data-parallel model on ranks of this machine, whose implementations divide
// the work in different ways. `bench ddp`: how gradients are reduced, beside c10d's own Reducer and
// beside ranks that send nothing. `bench sharding`: what dividing the optimizer's state saves and
// costs.
#pragma once

#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/parallel_case.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {

// How one case is measured: the task of its ranks. All implementations take turns on the same ranks
// and the same model.
struct ReplicaPlan {
  ParallelCase c;
  std::string command = "ddp";  // or "sharding"
  // division_by_name(), made of the wrappers; sharding_by_name().
  std::vector<std::string> implementations = {"none", "whole", "flat"};
  int64_t turns = 3, warmup = 3, steps = 5;  // steps a turn, after `warmup` and a first one
  bool traced = true;                        // a step of each under the profiler
  int64_t checked_steps = 2;                 // ddp: of the comparison of weights; 0: none
  // ddp: timed steps are replays of CUDA graphs, which no host holds up.
  bool recorded = false;
  std::string wrapper = "bucketed";  // sharding: how gradients are reduced
  double bucket_megabytes = 0;       // sharding: chosen, as flashstep train does
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplicaPlan, c, command, implementations, turns, warmup, steps,
                                   traced, checked_steps, recorded, wrapper, bucket_megabytes)

struct BenchReplicaOptions {
  ParallelAxes axes;
  ReplicaPlan plan;  // its case is replaced by each of the axes'
  // ddp: implementations, each with buckets once for every size of them.
  std::vector<std::string> wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  std::vector<double> bucket_megabytes = {};
  TellProgress progress = {};
};

// "none", "whole", "flat", as parallel.shard_optimizer names them; behind it "nccl": with
// parallel.peer_copies none; "flat scattered": with parallel.flat_buckets, so that gradients are
// reduce-scattered.
ParallelConfig sharding_by_name(const std::string& name);
std::vector<std::string> sharding_names();

// In the process that was called: starts the ranks of each case. And in each rank.
BenchReport bench_replica(const BenchReplicaOptions& options);
void bench_replica_rank(const std::string& task);

// ---- Inside

// One record an implementation, not measured yet. Rank 0 hands over samples in seconds, a value a
// step ("forward", "backward", "waited", "optimizer", "total", "lead"; "slowest": of all ranks) or
// a turn ("first": the first step, which no step of a training run is like, and "peak_bytes", the
// largest of the ranks), put_trace()'s, and facts: "weight_error", "bucket_megabytes", "by", ...
std::vector<Record> blanks_of(const ReplicaPlan& plan);
// What follows from the case and from other implementations' records.
void complete(const ReplicaPlan& plan, std::vector<Record>& records);

// A trace in a record: what ran when, and what that adds up to.

// Samples "compute spans", "copies spans", "communication spans" (begin, end, begin, ...; to a
// tenth of a microsecond); facts in seconds "computing", "communication", "exposed", "busy", the
// share "hidden" where anything is communicated, and "launches", of collectives. Or the fact "trace
// trouble": why there is nothing.
void put_trace(const Trace& trace, Record& record);
Trace trace_of(const Record& record);
bool is_traced(const Record& record);

Benchmark ddp_benchmark(const BenchReplicaOptions& options);
Benchmark sharding_benchmark(const BenchReplicaOptions& options);

// The name for readers, once the size of its buckets is known.
std::string shown_name(const Record& record);

}  // namespace flashstep::tools
