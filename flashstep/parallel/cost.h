// What data parallelism costs: the only home of these formulas. Derived in docs/parallel.md.
#pragma once

#include <cstdint>

namespace flashstep::parallel {

// Bytes that each rank sends (and receives) for a collective over `bytes` on `world_size` ranks in
// a ring, which no algorithm among equal ranks can undercut (Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", 2009).
double all_reduce_bytes(double bytes, int world_size);      // 2 (W - 1) / W of them
double reduce_scatter_bytes(double bytes, int world_size);  // (W - 1) / W
double all_gather_bytes(double bytes, int world_size);      // (W - 1) / W
// One rank to all others, in a chain of pieces: every rank but the last passes all bytes on.
double broadcast_bytes(double bytes, int world_size);

// Bytes of memory per rank beyond parameters and activations, when a step's gradients are ready.
// `parameters`: elements that are trained; `state_bytes_per_parameter`: of the optimizer, 8 for
// AdamW with float32 moments; `bucket_bytes`: 0 when gradients are reduced in place.
struct Memory {
  double gradients = 0;      // what single-process training has too
  double communication = 0;  // beyond that, at most
  double optimizer_state = 0;
};
Memory data_parallel_memory(int64_t parameters, double gradient_bytes_per_parameter,
                            double bucket_bytes, double state_bytes_per_parameter,
                            int state_shards);

// What a step costs each rank with the optimizer's state divided, or not: docs/parallel.md, "A
// sharded optimizer".
enum class Sharding { kNone, kWhole, kFlat };
struct ShardedStep {
  double sent_bytes = 0;      // and received: gradients, then parameters
  double launches = 0;        // of collectives
  double gradient_bytes = 0;  // kept until the update
  double transit_bytes = 0;   // at most, of buckets on their way, beside what is kept
  double state_bytes = 0;
};
struct ShardedStepSizes {
  double bytes = 0;         // of all parameters, and so of all gradients
  double state_bytes = 0;   // of the whole optimizer
  double bucket_bytes = 0;  // kFlat: of a flat tensor, too
  double part_bytes = 0;    // ShardOptions::part_megabytes
  bool nccl = true;         // else Gloo
};
ShardedStep sharded_step(Sharding sharding, const ShardedStepSizes& sizes, int world_size);

// Time that communication adds to a step when it runs beside backward: what is sent after backward
// has ended is the last bucket, and every bucket costs a start.
struct BucketModel {
  double bytes = 0;             // of all gradients
  double bytes_per_second = 0;  // at which an all-reduce works through gradients
  double overhead_s = 0;        // of one bucket: launch and synchronization
};
double bucket_overhead_s(const BucketModel& model, double bucket_bytes);  // b / w + (s / b) o
double best_bucket_bytes(const BucketModel& model);                       // sqrt(s w o)

}  // namespace flashstep::parallel
