#include "flashstep/parallel/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "flashstep/parallel/gradient_scatter.h"

namespace flashstep {
namespace {

// Between two H200s over NVLink (reports/data_parallel_h200/xl_bf16/xl_bf16.txt, 8.0 GB of
// gradients in 435 tensors): `flat` sends all in one message, 22.83 ms.
constexpr double kGradientBytesPerSecond = 350e9;
// `naive` needs 34.22 ms for 435 messages: 11.39 ms more for 434 more.
constexpr double kMessageSeconds = 26e-6;
constexpr int kMostMeasuredRanks = 8;

}  // namespace

double reduce_scatter_bytes(double bytes, int world_size) {
  return bytes * (world_size - 1) / world_size;
}

double all_gather_bytes(double bytes, int world_size) {
  return bytes * (world_size - 1) / world_size;
}

double all_reduce_bytes(double bytes, int world_size) {
  return reduce_scatter_bytes(bytes, world_size) + all_gather_bytes(bytes, world_size);
}

Memory data_parallel_memory(int64_t parameters, double gradient_bytes_per_parameter,
                            double bucket_bytes, double state_bytes_per_parameter,
                            int state_shards) {
  const auto count = static_cast<double>(parameters);
  return {.gradients = count * gradient_bytes_per_parameter,
          .communication = bucket_bytes,
          .optimizer_state = count * state_bytes_per_parameter / state_shards};
}

ShardedStep sharded_step(Sharding sharding, const ShardedStepSizes& sizes, int world_size) {
  const double bucket_bytes = std::min(sizes.bucket_bytes, sizes.bytes);
  const double buckets = std::max(1.0, std::ceil(sizes.bytes / bucket_bytes));
  // An update sends part after part of what a rank owns; all ranks' parts travel in one launch.
  const double parts = std::ceil(sizes.bytes / world_size / sizes.part_bytes);
  const double own_state = sizes.state_bytes / world_size;
  const bool copies = sizes.nccl && sizes.one_machine;
  switch (sharding) {
    case Sharding::kNone:
      return {all_reduce_bytes(sizes.bytes, world_size), buckets, sizes.bytes, bucket_bytes,
              sizes.state_bytes};
    case Sharding::kWhole: {
      // Gloo sends copies: two parts of every rank lie in memory at a time.
      const double messages = sizes.nccl ? 0 : 2 * sizes.part_bytes * world_size;
      return {all_reduce_bytes(sizes.bytes, world_size) + all_gather_bytes(sizes.bytes, world_size),
              buckets + (copies ? 0 : parts * (sizes.nccl ? 1 : world_size)), sizes.bytes,
              std::max(bucket_bytes, messages), own_state};
    }
    case Sharding::kFlat: {
      // What is sent, and on Gloo what is received, of each bucket in flight; one more is filled.
      const double in_flight = std::min<double>(kBucketsInFlight, buckets) * (sizes.nccl ? 1 : 2) +
                               (buckets > kBucketsInFlight ? 1 : 0);
      // Gloo gathers into copies of the flat tensors, two parts of every rank at a time.
      const double messages =
          sizes.nccl
              ? 0
              : std::min(2 * std::max(sizes.part_bytes * world_size, bucket_bytes), sizes.bytes);
      const double sent = copies ? all_reduce_bytes(sizes.bytes, world_size)
                                 : reduce_scatter_bytes(sizes.bytes, world_size);
      const double gathers = sizes.nccl ? std::min(parts, buckets) : buckets;
      return {sent + all_gather_bytes(sizes.bytes, world_size), buckets + (copies ? 0 : gathers),
              sizes.bytes / world_size, std::max(in_flight * bucket_bytes, messages), own_state};
    }
  }
  return {};
}

ZeroCost zero_cost(ZeroStage stage, const ZeroSizes& sizes, int world_size) {
  const auto part = [&](ZeroStage from) { return stage >= from ? 1.0 / world_size : 1.0; };
  ZeroCost cost;
  cost.state = sizes.state_bytes * part(ZeroStage::kState);
  cost.gradients = sizes.gradient_bytes * part(ZeroStage::kGradients);
  cost.parameters = sizes.parameter_bytes * part(ZeroStage::kParameters);
  if (stage == ZeroStage::kParameters && world_size > 1) cost.gathered = 2 * sizes.layer_bytes;
  const double gathers = stage == ZeroStage::kParameters ? 2 : 1;
  cost.sent_bytes = stage == ZeroStage::kNone
                        ? all_reduce_bytes(sizes.sent_gradient_bytes, world_size)
                        : reduce_scatter_bytes(sizes.sent_gradient_bytes, world_size) +
                              gathers * all_gather_bytes(sizes.sent_parameter_bytes, world_size);
  return cost;
}

FullShardStep full_shard_step(const FullShardSizes& sizes, int world_size) {
  const double all = sizes.travel * sizes.elements, root = sizes.travel * sizes.root,
               unit = sizes.travel * sizes.unit;
  const double own = all / world_size, others = (world_size - 1.0) / world_size;
  FullShardStep step;
  step.slots = root + 2 * unit;
  // Two, each with a row of a shard of the largest unit for every other rank.
  if (sizes.copies) step.inboxes = 2 * others * std::max(root, unit);
  step.in_flight = (sizes.copies ? 1 : 3) * kUnitsInFlight * unit;  // what is sent and what comes
  step.sent = others * (3 * all - root);
  // Read here and written there; own shards copied into both gathers' slots; W gradients summed up.
  if (sizes.copies) step.moved = 2 * step.sent + 2 * 2 * own + all + own;
  step.exposed = 2 * others * (root + unit);
  return step;
}

AllReduceCost all_reduce_cost(AllReduce algorithm, double bytes, int world_size, const Link& link) {
  const double hops = world_size - 1;
  const auto in_steps = [&](double steps, double step_bytes, double sent_bytes) {
    const double step_s = step_bytes / link.bytes_per_second + link.latency_s;
    return AllReduceCost{.steps = steps, .sent_bytes = sent_bytes, .seconds = steps * step_s};
  };
  switch (algorithm) {
    case AllReduce::kRing:
      return in_steps(2 * hops, bytes / world_size, all_reduce_bytes(bytes, world_size));
    case AllReduce::kTwoRings: {
      // Of two ranks both ways lead over one link, which then carries both halves.
      const double ways = world_size > 2 ? 2 : 1;
      return in_steps(2 * hops, bytes / ways / world_size, all_reduce_bytes(bytes, world_size));
    }
    case AllReduce::kWholeTensors:
      return in_steps(hops, bytes, hops * bytes);
    case AllReduce::kThroughOneRank:  // ranks inside the chain send the sum on, and back
      return in_steps(2 * hops, bytes, std::min(hops, 2.0) * bytes);
  }
  return {};
}

double whole_tensors_limit_bytes(int world_size, const Link& link) {
  if (world_size <= 2) return std::numeric_limits<double>::infinity();
  return link.latency_s * link.bytes_per_second * world_size / (world_size - 2);
}

double bucket_overhead_s(const BucketModel& model, double bucket_bytes) {
  return bucket_bytes / model.bytes_per_second + model.bytes / bucket_bytes * model.overhead_s;
}

double best_bucket_bytes(const BucketModel& model) {
  return std::sqrt(model.bytes * model.bytes_per_second * model.overhead_s);
}

double chosen_bucket_bytes(double gradient_bytes, bool nccl, int ranks_of_a_machine) {
  if (!nccl) return kLeastBucketBytes;
  const double of_two =
      best_bucket_bytes({gradient_bytes, kGradientBytesPerSecond, kMessageSeconds});
  if (of_two <= kMostPackedBytes) return std::max(kLeastBucketBytes, of_two);
  return of_two * std::sqrt(std::clamp(ranks_of_a_machine, 2, kMostMeasuredRanks) / 2.0);
}

double chosen_flat_bytes(double gradient_bytes, bool nccl, int world_size) {
  const double kept = gradient_bytes / world_size;
  return std::max(kLeastBucketBytes,
                  std::min(chosen_bucket_bytes(gradient_bytes, nccl, /*ranks_of_a_machine=*/2),
                           kept / (kBucketsInFlight + 1)));
}

}  // namespace flashstep
