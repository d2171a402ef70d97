#include "flashstep/parallel/cost.h"

#include <algorithm>
#include <cmath>

#include "flashstep/parallel/gradient_scatter.h"

namespace flashstep::parallel {

double reduce_scatter_bytes(double bytes, int world_size) {
  return bytes * (world_size - 1) / world_size;
}

double all_gather_bytes(double bytes, int world_size) {
  return bytes * (world_size - 1) / world_size;
}

double all_reduce_bytes(double bytes, int world_size) {
  return reduce_scatter_bytes(bytes, world_size) + all_gather_bytes(bytes, world_size);
}

double broadcast_bytes(double bytes, int world_size) { return world_size > 1 ? bytes : 0; }

Memory data_parallel_memory(int64_t parameters, double gradient_bytes_per_parameter,
                            double bucket_bytes, double state_bytes_per_parameter,
                            int state_shards) {
  const auto count = static_cast<double>(parameters);
  return {.gradients = count * gradient_bytes_per_parameter,
          .communication = bucket_bytes,
          .optimizer_state = count * state_bytes_per_parameter / state_shards};
}

ShardedStep sharded_step(Sharding sharding, const ShardedStepSizes& sizes, int world_size) {
  const double buckets = std::ceil(sizes.bytes / sizes.bucket_bytes);
  // An update sends part after part of what a rank owns; all ranks' parts travel in one launch.
  const double parts = std::ceil(sizes.bytes / world_size / sizes.part_bytes);
  const double own_state = sizes.state_bytes / world_size;
  switch (sharding) {
    case Sharding::kNone:
      return {all_reduce_bytes(sizes.bytes, world_size), buckets, sizes.bytes, sizes.bucket_bytes,
              sizes.state_bytes};
    case Sharding::kWhole: {
      // Gloo sends copies: two parts of every rank lie in memory at a time.
      const double copies = sizes.nccl ? 0 : 2 * sizes.part_bytes * world_size;
      return {all_reduce_bytes(sizes.bytes, world_size) + all_gather_bytes(sizes.bytes, world_size),
              buckets + parts * (sizes.nccl ? 1 : world_size), sizes.bytes,
              std::max(sizes.bucket_bytes, copies), own_state};
    }
    case Sharding::kFlat: {
      // What is sent, and on Gloo what is received, of each bucket on its way; one more is filled.
      const double in_flight = kBucketsInFlight * (sizes.nccl ? 1 : 2) + 1;
      return {
          reduce_scatter_bytes(sizes.bytes, world_size) + all_gather_bytes(sizes.bytes, world_size),
          buckets + (sizes.nccl ? std::min(parts, buckets) : buckets), sizes.bytes / world_size,
          std::min(in_flight, buckets) * sizes.bucket_bytes, own_state};
    }
  }
  return {};
}

double bucket_overhead_s(const BucketModel& model, double bucket_bytes) {
  return bucket_bytes / model.bytes_per_second + model.bytes / bucket_bytes * model.overhead_s;
}

double best_bucket_bytes(const BucketModel& model) {
  return std::sqrt(model.bytes * model.bytes_per_second * model.overhead_s);
}

}  // namespace flashstep::parallel
