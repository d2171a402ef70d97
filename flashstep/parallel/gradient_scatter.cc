#include "flashstep/parallel/gradient_scatter.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"

namespace flashstep {
namespace {

c10::intrusive_ptr<c10d::Work> start(at::Tensor& flat, at::Tensor& received, at::Tensor& part,
                                     bool backend_averages, const Group& group) {
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

GradientScatter::GradientScatter(std::vector<BucketLayout> layouts, const Group& group)
    : layouts_(std::move(layouts)), group_(group), buckets_(layouts_.size()) {
  for (const BucketLayout& layout : layouts_) {
    require(layout.numel % group.world_size() == 0, "[parallel] expected buckets that ",
            group.world_size(), " ranks can divide, got one of ", layout.numel, " elements");
  }
}

// Makes room by taking an earlier bucket, and notes what is known of this one.
GradientScatter::Bucket& GradientScatter::begin(size_t index, const at::Tensor& gradient,
                                                std::vector<bool> has_gradient,
                                                const ScatterOptions& options, bool in_place,
                                                SideStream& stream) {
  if (index >= kBucketsInFlight) {
    Bucket& earlier = buckets_[index - kBucketsInFlight];
    take(earlier);
    earlier.is_taken_aside = !options.backend_averages || in_place;
  }
  Bucket& bucket = buckets_[index];
  bucket.stream = &stream;
  bucket.dtype = gradient.scalar_type();
  bucket.is_captured = is_being_captured(gradient.device());
  bucket.widens = options.widens;
  bucket.name = options.name;
  bucket.has_gradient = std::move(has_gradient);
  return bucket;
}

void GradientScatter::launch(size_t index, at::Tensor flat, std::vector<bool> has_gradient,
                             const ScatterOptions& options, SideStream& stream) {
  // The bucket was made for another stream; it must not go to others before this one has read it.
  stream.keep(flat);
  stream.run([&] {
    Bucket& bucket = begin(index, flat, std::move(has_gradient), options,
                           /*in_place=*/false, stream);
    bucket.flat = options.communication_dtype ? flat.to(*options.communication_dtype) : flat;
    bucket.part = at::empty({flat.numel() / group_.world_size()}, bucket.flat.options());
    bucket.work = group_.guarded(bucket.name, [&] {
      return start(bucket.flat, bucket.received, bucket.part, options.backend_averages, group_);
    });
  });
}

void GradientScatter::launch_in_place(size_t index, std::vector<at::Tensor> pieces,
                                      std::vector<bool> has_gradient, const ScatterOptions& options,
                                      SideStream& stream) {
  for (const at::Tensor& piece : pieces) stream.keep(piece);
  stream.run([&] {
    Bucket& bucket = begin(index, pieces.front(), std::move(has_gradient), options,
                           /*in_place=*/true, stream);
    for (at::Tensor& piece : pieces) {
      if (options.communication_dtype) piece = piece.to(*options.communication_dtype);
      if (options.widens) piece = piece.to(at::kFloat).mul_(1.0 / group_.world_size());
    }
    bucket.work =
        start_reduction(pieces, options.backend_averages, group_, bucket.name, options.peers);
    bucket.pieces = std::move(pieces);
  });
}

// Sums up what came, and frees what only the sending needed, in the order of the current stream.
void GradientScatter::take(Bucket& bucket) {
  if (!bucket.work) return;
  group_.wait(bucket.work, bucket.name);
  // The work holds what travelled. NCCL's reduce-scatter is waited for once more, by wait().
  if (!bucket.pieces.empty() || bucket.received.defined()) bucket.work.reset();
  if (!bucket.pieces.empty()) keep_own(bucket);
  if (bucket.received.defined()) {
    const int ranks = group_.world_size();
    const at::ScalarType dtype = bucket.widens ? at::kFloat : bucket.dtype;
    bucket.part = part_of(bucket.received, 0, ranks).to(dtype, false, true);
    for (int rank = 1; rank < ranks; ++rank)
      bucket.part.add_(part_of(bucket.received, rank, ranks).to(dtype));
    if (bucket.widens) bucket.part = bucket.part.mul_(1.0 / ranks).to(bucket.dtype);
  }
  bucket.received.reset();
  bucket.flat.reset();
}

// Of the means, this rank's part: gradients that lie in it whole, as they are, and of those that do
// so in part, copies. Nobody reads the padding between slots.
void GradientScatter::keep_own(Bucket& bucket) {
  const BucketLayout& layout = layouts_[&bucket - buckets_.data()];
  const int64_t length = layout.numel / group_.world_size(), first = group_.rank() * length;
  bucket.own.assign(bucket.pieces.size(), {});
  for (size_t slot = 0; slot < bucket.pieces.size(); ++slot) {
    const at::Tensor& piece = bucket.pieces[slot];
    // It may have been made on the side stream, in the dtype that travels.
    bucket.stream->hand_over(piece);
    const int64_t offset = layout.offsets[slot];
    const int64_t begin = piece.numel() == 0 ? 0 : std::max(first - offset, int64_t{0});
    const int64_t end = std::min(first + length - offset, piece.numel());
    if (begin > end || (begin == end && piece.numel() > 0)) continue;
    const bool is_whole = end - begin == piece.numel();
    bucket.own[slot] = piece.slice(0, begin, end).to(bucket.dtype, false, /*copy=*/!is_whole);
  }
  bucket.pieces.clear();
}

void GradientScatter::wait(size_t index, SideStream& stream) {
  at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  take(bucket);
  bucket.work.reset();
  if (bucket.is_taken_aside) stream.join();
  bucket.is_taken_aside = false;
  for (const at::Tensor& own : bucket.own) {
    if (own.defined()) stream.hand_over(own);
  }
  if (!bucket.part.defined()) return;
  stream.hand_over(bucket.part);
  bucket.part = bucket.part.to(bucket.dtype);
}

at::Tensor GradientScatter::gradient(size_t index, size_t slot, int64_t begin, int64_t end) const {
  if (!has_gradient(index, slot)) return {};
  const Bucket& bucket = buckets_[index];
  const BucketLayout& layout = layouts_[index];
  const int64_t first = group_.rank() * (layout.numel / group_.world_size());
  const int64_t offset = layout.offsets[slot];
  if (bucket.own.empty()) return bucket.part.slice(0, offset + begin - first, offset + end - first);
  if (begin == end) return bucket.own[slot];
  const int64_t own_begin = std::max(first - offset, int64_t{0});
  return bucket.own[slot].slice(0, begin - own_begin, end - own_begin);
}

bool GradientScatter::has_gradient(size_t index, size_t slot) const {
  const Bucket& bucket = buckets_[index];
  return bucket.holds_means() && bucket.has_gradient[slot];
}

bool GradientScatter::holds_means() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const Bucket& bucket) { return bucket.holds_means(); });
}

void GradientScatter::forget() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.work && !bucket.is_captured) group_.wait(bucket.work, bucket.name);
  }
  buckets_.assign(layouts_.size(), {});
}

void GradientScatter::clear() {
  for (Bucket& bucket : buckets_) {
    bucket.part.reset();
    bucket.own.clear();
  }
}

}  // namespace flashstep
