#include "flashstep/parallel/bucket_reduction.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/comm/agreement.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/collective_error.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/parallel/divided_gradient.h"

namespace flashstep {
namespace {

double bucket_bytes(const ReducerOptions& options) {
  switch (options.strategy) {
    case Strategy::kBucketed:
      return options.bucket_megabytes * kBytesPerMegabyte;
    case Strategy::kFlat:
      return std::numeric_limits<double>::infinity();
    default:
      return 0;
  }
}

// Of what is averaged beside backward.
double last_bucket_bytes(const ReducerOptions& options) {
  return options.strategy == Strategy::kBucketed ? kLeastBucketBytes
                                                 : std::numeric_limits<double>::infinity();
}

std::vector<at::Tensor> hooked(const ReducedParameters& parameters, const Group& group) {
  return group.world_size() > 1 ? parameters.tensors : std::vector<at::Tensor>();
}

}  // namespace

BucketReduction::BucketReduction(ReducedParameters parameters, const Group& group,
                                 const ReducerOptions& options)
    : Reduction(std::move(parameters), group, options),
      averaging_(make_averaging(parameters_, group_, options_)),
      host_waits_(!goes_through_nccl(parameters_.tensors, group_)),
      order_(reversed_order(parameters_.tensors.size())),
      counts_(parameters_.tensors.size()),
      hooks_(
          hooked(parameters_, group_), [this](int64_t index) { fired(index); },
          /*averages=*/true) {
  make_buckets();
}

bool BucketReduction::follows_backward() const {
  return options_.strategy == Strategy::kOverlapped || options_.strategy == Strategy::kBucketed;
}

// What ranks compare, they compare before anything is sent.
bool BucketReduction::sends_in_backward() const { return follows_backward() && !options_.debug; }

void BucketReduction::make_buckets() {
  move_kept_means();
  buckets_.clear();
  if (group_.world_size() == 1) return;
  places_.assign(parameters_.tensors.size(), {});
  const auto layouts = averaging_.scatter
                           ? averaging_.scatter->layouts()
                           : plan_buckets(parameters_.tensors, gradient_dtypes_, order_,
                                          bucket_bytes(options_), last_bucket_bytes(options_));
  for (const BucketLayout& layout : layouts) {
    const at::Device device = parameters_.tensors[layout.parameters.front()].device();
    SideStream& stream = streams_.try_emplace(device.str(), group_, device).first->second;
    for (size_t slot = 0; slot < layout.parameters.size(); ++slot) {
      places_[layout.parameters[slot]] = {buckets_.size(), slot};
    }
    const std::string name = layout.parameters.size() == 1
                                 ? flashstep::str("averaging the gradient of ",
                                                  parameters_.names[layout.parameters.front()])
                                 : flashstep::str("averaging gradients, bucket ",
                                                  buckets_.size() + 1, " of ", layouts.size());
    buckets_.emplace_back(layout, parameters_.tensors, averaging_, stream, name, buckets_.size());
  }
  keep_means();
}

// Gradients that lie where other buckets' means will arrive, elsewhere.
void BucketReduction::move_kept_means() {
  if (!averaging_.peers) return;
  for (const at::Tensor& parameter : parameters_.tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || is_divided_gradient(gradient)) continue;
    if (averaging_.peers->is_kept(gradient)) gradient = gradient.clone();
  }
}

bool BucketReduction::can_keep_means() const {
  return options_.gradient_as_bucket_view && averaging_.peers && averaging_.in_place &&
         !averaging_.scatter && !options_.communication_dtype;
}

// Gives the buckets their places, as far as there are some.
void BucketReduction::keep_means() {
  if (!kept_bytes_ || !can_keep_means()) return;
  size_t filled = 0;
  for (Bucket& bucket : buckets_) {
    const size_t bytes = bucket.kept_bytes();
    if (filled + bytes > *kept_bytes_) return;
    bucket.keep_means_at(filled);
    filled += bytes;
  }
}

// Called by autograd when it has added to the gradient.
void BucketReduction::fired(int64_t index) {
  const std::lock_guard lock(mutex_);
  norm_is_known_ = false;
  if (!is_enabled()) {
    holds_own_gradients_ = true;
    return;
  }
  check_capture(parameters_.tensors[index].device());
  Count& count = counts_[index];
  ++count.fired;
  count.last = ++clock_;
  check_gradient(index);
  if (recording_ || count.expected == 0) return;
  // Its all-reduce is in flight, and this gradient was added to it; other strategies, where it is
  // not, refuse what these must.
  if (count.fired > count.expected) {
    came_again_ = UserError(
        flashstep::str("[parallel] expected the gradient of ", parameters_.names[index],
                       " to come ", count.expected,
                       " times before finish_gradient_synchronization(), as in the first step, ",
                       "but it came again on rank ", group_.rank()),
        parameters_.names[index]);
    is_broken_ = is_broken_ || !all_hear();
    throw *came_again_;
  }
  // One that cannot be sent waits for finish(), where all ranks hear of it.
  if (!sends_in_backward() || count.fired < count.expected || !is_announced(index)) return;
  const bool was_broken = std::exchange(is_broken_, true);  // if this throws half-way
  fill(index);
  send_full_buckets();
  is_broken_ = was_broken;
}

// Whether at the end of a step all ranks hear what one has to say of it: it is over then for all of
// them, and what comes next is a new one.
bool BucketReduction::all_hear() const {
  return host_waits_ && !recording_ && !options_.allow_unused;
}

void BucketReduction::fill(int64_t index) {
  const auto [bucket, slot] = places_[index];
  if (!buckets_[bucket].is_filled(slot)) buckets_[bucket].fill(slot);
}

void BucketReduction::send_full_buckets() {
  while (next_ < buckets_.size() && buckets_[next_].is_full()) {
    if (next_ == 0 && averaging_.peers) averaging_.peers->begin_norm();
    buckets_[next_++].launch();
  }
}

// Parameters that have no gradient at the end of backward.
std::vector<int64_t> BucketReduction::missing() const {
  std::vector<int64_t> result;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto [bucket, slot] = places_[i];
    if (!buckets_[bucket].is_filled(slot) && !parameters_.tensors[i].grad().defined())
      result.push_back(static_cast<int64_t>(i));
  }
  return result;
}

void BucketReduction::send_rest(const std::vector<int64_t>& missing,
                                const std::vector<int64_t>& unannounced) {
  const auto is_in = [](const std::vector<int64_t>& sorted, int64_t index) {
    return std::binary_search(sorted.begin(), sorted.end(), index);
  };
  const bool one_by_one = options_.strategy == Strategy::kNaive;
  // The means that a gradient is missing in are no means: they become NaN, so that no rank trains
  // on with them.
  constexpr double kNoMean = std::numeric_limits<double>::quiet_NaN();
  const double stand_in = options_.allow_unused ? 0.0 : kNoMean;
  for (size_t b = next_; b < buckets_.size(); ++b) {
    for (size_t slot = 0; slot < buckets_[b].layout().parameters.size(); ++slot) {
      const int64_t index = buckets_[b].layout().parameters[slot];
      if (buckets_[b].is_filled(slot)) continue;
      if (is_in(missing, index)) {
        buckets_[b].fill_missing(slot, stand_in);
      } else if (is_in(unannounced, index)) {
        buckets_[b].fill_missing(slot, kNoMean);
      } else {
        check_gradient(index);
        buckets_[b].fill(slot);
      }
    }
    send_full_buckets();
    if (one_by_one) buckets_[b].wait();
  }
}

void BucketReduction::wait_for_all(const std::vector<int64_t>& missing) {
  std::vector<int64_t> has_gradient;  // on some rank
  if (options_.allow_unused) {
    has_gradient.assign(parameters_.tensors.size(), 1);
    for (const int64_t index : missing) has_gradient[index] = 0;
    has_gradient = group_.all_reduce(has_gradient, Reduce::kMax);
  }
  if (options_.strategy != Strategy::kNaive) {
    for (Bucket& bucket : buckets_) bucket.wait();
  }
  for (const int64_t index : missing) {
    const auto [bucket, slot] = places_[index];
    if (!has_gradient.empty() && has_gradient[index] != 0) buckets_[bucket].attach(slot);
  }
}

// What each rank has a share of is no longer whole in .grad.
void BucketReduction::mark_divided() {
  if (!averaging_.scatter) return;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const std::vector<int64_t>& parameters = buckets_[b].layout().parameters;
    const int64_t first = parameters.front();
    const at::Tensor mark =
        divided_gradient(gradient_dtypes_[first], parameters_.tensors[first].device());
    for (size_t slot = 0; slot < parameters.size(); ++slot) {
      if (averaging_.scatter->has_gradient(b, slot))
        parameters_.tensors[parameters[slot]].mutable_grad() = mark;
    }
  }
}

void BucketReduction::finish() {
  const std::lock_guard lock(mutex_);
  require(is_enabled(), "[parallel] expected finish_gradient_synchronization() outside of no_sync");
  if (group_.world_size() == 1) return;
  require(!is_broken_, "[parallel] expected no reduction after one that failed");
  for (const auto& [device, stream] : streams_) check_capture(at::Device(device));
  const std::vector<int64_t> missing = this->missing(), unannounced = this->unannounced();
  const std::optional<UserError> mistake = mistake_of(unannounced);
  compare_first(mistake, missing);
  std::optional<UserError> deviation = mistake ? mistake : this->deviation(missing);
  is_broken_ = true;  // until this comes to its end
  send_rest(missing, unannounced);
  std::optional<CollectiveError> shared;
  if (all_hear()) shared.emplace(deviation, group_);
  wait_for_all(missing);
  if (shared) deviation = shared->first();
  if (!deviation) mark_divided();
  norm_is_known_ = averaging_.peers && !deviation && !options_.communication_dtype;
  if (recording_) {
    record();
  } else {
    take_room_for_means();
  }
  if (!deviation) count_first_seen();
  begin_next_step();
  is_broken_ = deviation && !shared;
  if (deviation && shared) throw AgreedError(*deviation);
  if (deviation) throw *deviation;
}

// After the first step: from now on a gradient is ready when it has come as often as in this one.
void BucketReduction::record() {
  recording_ = false;
  for (Count& count : counts_) count.expected = count.fired;
  if (!follows_backward() || !options_.reorder || order_is_given_ || order_.empty() ||
      averaging_.scatter) {
    return;
  }
  std::vector<int64_t> order = order_;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    // Those that did not come at all are last.
    const auto time = [&](int64_t i) {
      return counts_[i].fired > 0 ? counts_[i].last : std::numeric_limits<int64_t>::max();
    };
    return time(a) < time(b);
  });
  const at::Tensor chosen = at::tensor(order, at::kLong);
  group_.broadcast(chosen, 0);
  order_.assign(chosen.const_data_ptr<int64_t>(),
                chosen.const_data_ptr<int64_t>() + chosen.numel());
  order_is_given_ = true;
  for (Bucket& bucket : buckets_) bucket.release();
  make_buckets();
}

// The step before has shown how much memory is left, with the optimizer's state, that the first
// update makes.
void BucketReduction::take_room_for_means() {
  if (kept_bytes_ || !can_keep_means()) return;
  if (is_being_captured(parameters_.tensors.front().device())) return;
  size_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bucket.kept_bytes();
  kept_bytes_ = averaging_.peers->keep(bytes) ? bytes : 0;
  keep_means();
}

// A rank without rows in the first step had nothing to count then.
void BucketReduction::count_first_seen() {
  for (Count& count : counts_) {
    if (count.expected == 0) count.expected = count.fired;
  }
}

void BucketReduction::begin_next_step() {
  for (Bucket& bucket : buckets_) bucket.release();
  forget_counts();
  next_ = 0;
}

void BucketReduction::forget_counts() {
  for (Count& count : counts_) count.fired = 0;
  came_again_.reset();
  holds_own_gradients_ = false;
}

void BucketReduction::forget_step() {
  const std::lock_guard lock(mutex_);
  if (averaging_.scatter) averaging_.scatter->forget();
  for (Bucket& bucket : buckets_) bucket.give_up();
  for (const auto& [device, stream] : streams_) {
    if (!is_being_captured(at::Device(device))) stream.join();
  }
  begin_next_step();
  holds_own_gradients_ = true;  // those of the step that was broken off
  is_broken_ = false;
}

bool BucketReduction::is_unfinished() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(counts_.begin(), counts_.end(), [](const Count& c) { return c.fired > 0; });
}

// Shards lie where they lie: their buckets follow no order that is found out later.
std::vector<int64_t> BucketReduction::order() const {
  return averaging_.scatter ? std::vector<int64_t>() : order_;
}

bool BucketReduction::scatter_to(const std::shared_ptr<GradientScatter>& scatter) {
  require(
      !is_unfinished(),
      "[parallel] expected gradients to be divided from a step's beginning, not after backward");
  const bool has_buckets =
      options_.strategy == Strategy::kFlat || options_.strategy == Strategy::kBucketed;
  if (!has_buckets || group_.world_size() == 1) return false;
  // Its owner and this. One whose owner is gone (in the middle of a step) may be replaced.
  require(scatter == nullptr || averaging_.scatter.use_count() <= 1,
          "[parallel] expected one sharded optimizer at a time to take a reducer's gradients, got "
          "another one: the first ends before the next is made");
  set_scatter(averaging_, parameters_, options_, scatter);
  make_buckets();
  return true;
}

void BucketReduction::set_order(const std::vector<int64_t>& order, double bucket_megabytes) {
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(parameters_.tensors.size());
  std::iota(all.begin(), all.end(), 0);
  require(sorted == all, "[parallel] expected an order of the ", all.size(),
          " parameters that are reduced, each once, got ", order.size(), " numbers that are none");
  require(!is_unfinished(), "[parallel] expected a new order between steps, not after a backward");
  require(bucket_megabytes >= 0, "[parallel] expected bucket_megabytes of at least 0, got ",
          bucket_megabytes);
  if (bucket_megabytes > 0) options_.bucket_megabytes = bucket_megabytes;
  order_ = order;
  order_is_given_ = true;
  make_buckets();
}

void BucketReduction::record_again() {
  require(!is_unfinished(),
          "[parallel] expected record_again() between steps, not after a backward");
  recording_ = true;
  order_is_given_ = false;
}

at::Tensor BucketReduction::gradient_norm() const {
  const std::lock_guard lock(mutex_);
  if (!norm_is_known_) return {};
  int64_t numel = 0;
  for (const at::Tensor& parameter : parameters_.tensors) numel += parameter.numel();
  return averaging_.peers->norm(numel);
}

bool BucketReduction::holds_divided_means() const {
  return averaging_.scatter && averaging_.scatter->holds_means();
}

std::string BucketReduction::transport() const {
  if (averaging_.peers && averaging_.in_place) return kCopies;
  return transport_of(parameters_.tensors, group_);
}

std::vector<std::vector<int64_t>> BucketReduction::buckets() const {
  std::vector<std::vector<int64_t>> result;
  for (const Bucket& bucket : buckets_) result.push_back(bucket.layout().parameters);
  return result;
}

}  // namespace flashstep
