#include "flashstep/parallel/cost.h"

#include <cmath>

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

double bucket_overhead_s(const BucketModel& model, double bucket_bytes) {
  return bucket_bytes / model.bytes_per_second + model.bytes / bucket_bytes * model.overhead_s;
}

double best_bucket_bytes(const BucketModel& model) {
  return std::sqrt(model.bytes * model.bytes_per_second * model.overhead_s);
}

}  // namespace flashstep::parallel
