#include "flashstep/parallel/averaging.h"

#include <algorithm>
#include <utility>

#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/cost.h"

namespace flashstep {
namespace {

bool is_in_place(const ReducerOptions& options, const ReducedParameters& parameters,
                 const Group& group) {
  if (options.strategy != Strategy::kBucketed) return options.strategy != Strategy::kFlat;
  return !options.flat_buckets.value_or(!goes_through_nccl(parameters.tensors, group));
}

// What one mean is of: a bucket, which closes when it has reached its size, or a large tensor.
double most_of_a_mean(const ReducerOptions& options, const ReducedParameters& parameters) {
  double most =
      std::max(kLeastBucketBytes, kMostOfBucket * options.bucket_megabytes * kBytesPerMegabyte);
  for (const at::Tensor& tensor : parameters.tensors)
    most = std::max(most, gradient_bytes({tensor}));
  return std::min(most, gradient_bytes(parameters.tensors));
}

// For buckets that stay in place. All ranks agree, for they have the same options and parameters.
std::shared_ptr<PeerMean> make_peers(const ReducerOptions& options,
                                     const ReducedParameters& parameters, const Group& group) {
  if (options.strategy != Strategy::kBucketed || !options.peer_copies ||
      !is_in_place(options, parameters, group) || !goes_through_nccl(parameters.tensors, group)) {
    return nullptr;
  }
  const at::Device device = parameters.tensors.front().device();
  for (const at::Tensor& tensor : parameters.tensors) {
    if (tensor.device() != device) return nullptr;
  }
  return make_peer_mean(group, device, static_cast<size_t>(most_of_a_mean(options, parameters)));
}

}  // namespace

Averaging make_averaging(const ReducedParameters& parameters, const Group& group,
                         const ReducerOptions& options) {
  return {group, options.communication_dtype, is_in_place(options, parameters, group),
          make_peers(options, parameters, group), nullptr};
}

void set_scatter(Averaging& averaging, const ReducedParameters& parameters,
                 const ReducerOptions& options, std::shared_ptr<GradientScatter> scatter) {
  const bool divided_on_the_way =
      scatter && options.flat_buckets.value_or(!averaging.group.is_on_one_machine());
  averaging.in_place = is_in_place(options, parameters, averaging.group) && !divided_on_the_way;
  averaging.scatter = std::move(scatter);
}

}  // namespace flashstep
