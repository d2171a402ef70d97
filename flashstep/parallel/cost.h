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
