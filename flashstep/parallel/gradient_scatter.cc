#include "flashstep/parallel/gradient_scatter.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/base/error.h"

namespace flashstep::parallel {
namespace {

c10::intrusive_ptr<c10d::Work> start(at::Tensor& flat, at::Tensor& received, at::Tensor& part,
                                     bool backend_averages, const comm::Group& group) {
  if (backend_averages) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    return group.process_group()._reduce_scatter_base(part, flat, options);
  }
  received = at::empty_like(flat);
  std::vector<int64_t> equal;  // parts
  return group.process_group().alltoall_base(received, flat, equal, equal);
}

}  // namespace

at::Tensor part_of(const at::Tensor& flat, int rank, int world_size) {
  const int64_t length = flat.numel() / world_size;
  return flat.slice(0, rank * length, (rank + 1) * length);
}

GradientScatter::GradientScatter(std::vector<BucketLayout> layouts, const comm::Group& group)
    : layouts_(std::move(layouts)), group_(group), buckets_(layouts_.size()) {
  for (const BucketLayout& layout : layouts_) {
    require(layout.numel % group.world_size() == 0, "[parallel] expected buckets that ",
            group.world_size(), " ranks can divide, got one of ", layout.numel, " elements");
  }
}

void GradientScatter::launch(size_t index, at::Tensor flat, std::vector<bool> has_gradient,
                             const ScatterOptions& options, SideStream& stream) {
  // The bucket was made for another stream; it must not go to others before this one has read it.
  stream.keep(flat);
  stream.run([&] {
    if (index >= kBucketsInFlight) {
      Bucket& earlier = buckets_[index - kBucketsInFlight];
      take(earlier);
      earlier.is_summed_aside = !options.backend_averages;
    }
    Bucket& bucket = buckets_[index];
    bucket.dtype = flat.scalar_type();
    bucket.name = options.name;
    bucket.has_gradient = std::move(has_gradient);
    bucket.flat = options.communication_dtype ? flat.to(*options.communication_dtype) : flat;
    bucket.part = at::empty({flat.numel() / group_.world_size()}, bucket.flat.options());
    bucket.work = group_.guarded(bucket.name, [&] {
      return start(bucket.flat, bucket.received, bucket.part, options.backend_averages, group_);
    });
  });
}

// Sums up what came, and frees what only the sending needed, in the order of the current stream.
void GradientScatter::take(Bucket& bucket) {
  if (!bucket.work) return;
  group_.wait(bucket.work, bucket.name);
  if (bucket.received.defined()) {
    bucket.part = part_of(bucket.received, 0, group_.world_size()).to(bucket.dtype, false, true);
    for (int rank = 1; rank < group_.world_size(); ++rank) {
      bucket.part.add_(part_of(bucket.received, rank, group_.world_size()).to(bucket.dtype));
    }
  }
  bucket.received.reset();
  bucket.flat.reset();
}

void GradientScatter::wait(size_t index, SideStream& stream) {
  at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  take(bucket);
  bucket.work.reset();
  if (bucket.is_summed_aside) stream.join();
  bucket.is_summed_aside = false;
  stream.hand_over(bucket.part);
  bucket.part = bucket.part.to(bucket.dtype);
}

void GradientScatter::clear() {
  for (Bucket& bucket : buckets_) bucket.part.reset();
}

}  // namespace flashstep::parallel
