#include "flashstep/parallel/bucket.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/cost.h"

namespace flashstep {
namespace {

// A copy from GPU to GPU takes as long to begin as one of so many bytes takes.
constexpr double kSmallBytes = 1 << 20;
constexpr int64_t kVectorBytes = 16;  // that kernels read at a time

// What each of `world_size` gradients is multiplied by. A tensor, since mul_ of a plain number
// rounds the number to the dtype of what is multiplied: in bfloat16 a third is 0.2 % too large.
at::Tensor share_of_mean(int world_size) {
  return at::native::wrapped_scalar_tensor(1.0 / world_size);
}

// Gloo adds in the dtype that it sends. Sums of gradients that are kept with fewer bits than their
// parameter's would be rounded with each addition, so they travel as float32 unless a
// communication_dtype says otherwise: twice the bytes, where links are not what is scarce.
bool is_widened(const BucketLayout& layout, const at::Tensor& parameter,
                const Averaging& averaging) {
  return at::isReducedFloatingType(layout.dtype) && layout.dtype != parameter.scalar_type() &&
         !averaging.communication_dtype;
}

}  // namespace

Bucket::Bucket(BucketLayout layout, const std::vector<at::Tensor>& all_parameters,
               const Averaging& averaging, SideStream& stream, const std::string& name,
               size_t number)
    : layout_(std::move(layout)),
      averaging_(averaging),
      stream_(stream),
      name_(name),
      number_(number),
      pieces_(layout_.parameters.size()),
      missing_(layout_.parameters.size()),
      filled_(layout_.parameters.size(), false) {
  for (const int64_t index : layout_.parameters) parameters_.push_back(all_parameters[index]);
  backend_averages_ = goes_through_nccl({parameters_.front()}, averaging_.group);
  widens_ = !backend_averages_ && is_widened(layout_, parameters_.front(), averaging_);
  wire_dtype_ = widens_ ? at::kFloat : averaging_.communication_dtype;
}

at::TensorOptions Bucket::gradient_options() const {
  return at::TensorOptions(parameters_.front().device()).dtype(layout_.dtype);
}

// Whether its gradients travel to other GPUs side by side, for they are small.
bool Bucket::packs() const {
  const auto bytes =
      static_cast<double>(layout_.numel) * static_cast<double>(c10::elementSize(layout_.dtype));
  return averaging_.peers && averaging_.in_place && !averaging_.scatter && parameters_.size() > 1 &&
         bytes <= kMostPackedBytes && bytes < kSmallBytes * static_cast<double>(parameters_.size());
}

std::vector<int64_t> Bucket::sizes() const {
  std::vector<int64_t> sizes;
  for (const at::Tensor& parameter : parameters_) sizes.push_back(parameter.numel());
  return sizes;
}

void Bucket::keep_means_at(size_t byte) {
  kept_at_ = byte;
  if (!packs()) return;
  // Kernels shall find gradients where they read whole vectors.
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  int64_t numel = 0;
  for (const int64_t size : sizes()) {
    if (numel * element_bytes % kVectorBytes != 0) return;
    numel += size;
  }
  packed_ = at::empty({numel}, gradient_options());
}

// The gradients side by side; those that lie there already stay.
at::Tensor Bucket::pack() const {
  if (!packed_.defined()) return at::cat(wire_);
  const std::vector<at::Tensor> places = packed_.split_with_sizes(sizes());
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < wire_.size(); ++i) {
    if (wire_[i].const_data_ptr() == places[i].const_data_ptr()) continue;
    to.push_back(places[i]);
    from.push_back(wire_[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  return packed_;
}

void Bucket::fill(size_t slot) {
  at::NoGradGuard no_grad;
  if (averaging_.in_place) {
    fill_in_place(slot);
  } else {
    fill_slot(slot);
  }
  filled_[slot] = true;
  ++ready_;
}

void Bucket::fill_in_place(size_t slot_index) {
  const at::Tensor& gradient = parameters_[slot_index].grad();
  if (gradient.storage().use_count() > 1) {
    shared_[gradient.storage().unsafeGetStorageImpl()].push_back({slot_index, stream_.current()});
  } else {
    take_in_place(slot_index, /*may_stay=*/true);
  }
  // Autograd adds to a gradient, and calls the hook, on the stream on which forward first used the
  // parameter. launch() runs under the one of the last gradient.
  stream_.await_current();
}

// `may_stay`: where it has the form that other ranks' has.
void Bucket::take_in_place(size_t slot_index, bool may_stay) {
  const at::Tensor& parameter = parameters_[slot_index];
  at::Tensor& gradient = parameter.mutable_grad();
  if (!may_stay || gradient.strides() != gradient_strides(parameter)) {
    gradient = at::empty_strided(parameter.sizes(), gradient_strides(parameter), gradient.options())
                   .copy_(gradient);
  }
  pieces_[slot_index] = flat_view(gradient);
  if (divides_first()) pieces_[slot_index].mul_(share_of_mean(averaging_.group.world_size()));
}

// Whether the gradients in `slots`, of one memory, are all that looks into it, and none into what
// another one sees.
bool Bucket::are_neighbours(const std::vector<Shared>& slots) const {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Shared& shared : slots) {
    const at::Tensor& gradient = parameters_[shared.slot].grad();
    if (gradient.storage().use_count() != slots.size() || !gradient.is_non_overlapping_and_dense())
      return false;
    ranges.emplace_back(gradient.storage_offset(), gradient.storage_offset() + gradient.numel());
  }
  std::sort(ranges.begin(), ranges.end());
  return std::adjacent_find(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
           return a.second > b.first;
         }) == ranges.end();
}

// Neighbours, such as the gradients of a product with several weights, stay where they are. What
// lies in one place for two parameters would be averaged twice. Only a full bucket can tell: by
// then autograd itself holds nothing of that memory.
void Bucket::take_shared() {
  for (const auto& [memory, slots] : shared_) {
    const bool stay = are_neighbours(slots);
    for (const Shared& shared : slots) {
      const c10::StreamGuard guard(shared.stream);
      const bool is_alone = parameters_[shared.slot].grad().storage().use_count() == 1;
      take_in_place(shared.slot, stay || is_alone);
      stream_.await_current();
    }
  }
  shared_.clear();
}

// After zero_grad without set_to_none gradients lie where the step before has left them.
bool Bucket::lies_in_last_memory(const at::Tensor& gradient, size_t slot_index) const {
  return last_memory_ && gradient.storage().unsafeGetStorageImpl() == last_memory_->lock().get() &&
         gradient.storage_offset() == layout_.offsets[slot_index] &&
         gradient.strides() == gradient_strides(parameters_[slot_index]);
}

void Bucket::fill_slot(size_t slot_index) {
  const at::Tensor& parameter = parameters_[slot_index];
  const at::Tensor gradient = parameter.grad();
  if (flat_.empty() && lies_in_last_memory(gradient, slot_index)) {
    flat_.push_back(whole_memory(gradient, layout_.numel));
  }
  at::Tensor place = slot(slot_index);
  const at::Tensor share = share_of_mean(averaging_.group.world_size());
  stream_.run([&] {
    if (is_same_view(gradient, place)) {
      if (divides_first()) place.mul_(share);
    } else if (divides_first()) {
      at::mul_out(place, gradient, share);
    } else {
      place.copy_(gradient, /*non_blocking=*/true);
    }
  });
  stream_.keep(gradient);
  parameter.mutable_grad() = place;
}

void Bucket::fill_missing(size_t slot_index, double value) {
  at::NoGradGuard no_grad;
  if (averaging_.in_place) {
    const at::Tensor& parameter = parameters_[slot_index];
    missing_[slot_index] =
        at::empty_strided(parameter.sizes(), gradient_strides(parameter), gradient_options())
            .fill_(value);
    pieces_[slot_index] = flat_view(missing_[slot_index]);
    stream_.await_current();
  } else {
    const at::Tensor place = slot(slot_index);
    stream_.run([&] { place.fill_(value); });
  }
  filled_[slot_index] = true;
  ++ready_;
}

void Bucket::attach(size_t slot_index) {
  if (averaging_.scatter) {
    averaging_.scatter->set_gradient(number_, slot_index);
    return;
  }
  parameters_[slot_index].mutable_grad() =
      averaging_.in_place ? missing_[slot_index] : slot(slot_index);
}

void Bucket::launch_scatter() {
  std::vector<bool> has_gradient;
  for (const at::Tensor& parameter : parameters_) {
    has_gradient.push_back(parameter.grad().defined());
    parameter.mutable_grad().reset();
  }
  const ScatterOptions options = {backend_averages_, averaging_.communication_dtype, widens_, name_,
                                  averaging_.peers.get()};
  if (averaging_.in_place) {
    averaging_.scatter->launch_in_place(number_, pieces_, std::move(has_gradient), options,
                                        stream_);
    pieces_.assign(pieces_.size(), {});
    missing_.assign(missing_.size(), {});
    return;
  }
  at::Tensor flat = std::move(flat_.front());
  flat_.clear();
  averaging_.scatter->launch(number_, std::move(flat), std::move(has_gradient), options, stream_);
}

void Bucket::launch() {
  at::NoGradGuard no_grad;
  take_shared();
  if (averaging_.scatter) {
    launch_scatter();
    return;
  }
  stream_.run([&] {
    wire_ = parts();
    if (wire_dtype_) {
      for (at::Tensor& part : wire_) part = part.to(*wire_dtype_);
    }
    if (widens_) {
      for (at::Tensor& part : wire_) part.mul_(share_of_mean(averaging_.group.world_size()));
    }
    if (packs()) wire_ = {pack()};
    is_captured_ = is_being_captured(wire_.front().device());
    work_ = start_reduction(wire_, backend_averages_, averaging_.group, name_,
                            averaging_.peers.get(), packs() ? std::nullopt : kept_at_);
  });
}

void Bucket::wait() {
  if (averaging_.scatter) {
    averaging_.scatter->wait(number_, stream_);
    return;
  }
  averaging_.group.wait(work_, name_);
  work_.reset();
  at::NoGradGuard no_grad;
  if (packs()) unpack();
  for (size_t i = 0; i < wire_.size(); ++i) {
    if (wire_[i].unsafeGetTensorImpl() == parts()[i].unsafeGetTensorImpl()) continue;
    if (kept_at_) {
      adopt(i, wire_[i]);
      continue;
    }
    parts()[i].copy_(wire_[i]);
    stream_.hand_over(wire_[i]);
  }
  wire_.clear();
}

void Bucket::unpack() {
  const at::Tensor packed = std::exchange(wire_, {}).front();
  stream_.hand_over(packed);
  const std::vector<at::Tensor> means = packed.split_with_sizes(sizes());
  if (packed.is_same(packed_)) {
    for (size_t i = 0; i < means.size(); ++i) adopt(i, means[i]);
  } else {
    at::_foreach_copy_(parts(), means);
  }
}

// The mean of the gradient in that slot, a flat tensor, is the gradient.
void Bucket::adopt(size_t slot_index, const at::Tensor& mean) {
  const at::Tensor gradient = slot_view(mean, 0, parameters_[slot_index]);
  if (missing_[slot_index].defined()) missing_[slot_index] = gradient;
  at::Tensor& place = parameters_[slot_index].mutable_grad();
  if (!place.defined()) return;
  stream_.hand_over(place);  // it may be another stream's, which knows nothing of what read it
  place = gradient;
}

size_t Bucket::kept_bytes() const {
  if (packs()) return 0;
  std::vector<size_t> bytes;
  for (const at::Tensor& parameter : parameters_)
    bytes.push_back(parameter.numel() * c10::elementSize(layout_.dtype));
  return averaging_.peers->kept_bytes(bytes);
}

void Bucket::release() {
  if (!flat_.empty()) last_memory_ = flat_.front().storage().getWeakStorageImpl();
  flat_.clear();
  pieces_.assign(pieces_.size(), {});
  missing_.assign(missing_.size(), {});
  shared_.clear();
  filled_.assign(filled_.size(), false);
  ready_ = 0;
  work_.reset();
  wire_.clear();
}

void Bucket::give_up() {
  if (work_ && !is_captured_) averaging_.group.wait(work_, name_);
  release();
}

at::Tensor Bucket::slot(size_t slot_index) {
  if (flat_.empty()) take_memory();
  return slot_view(flat_.front(), layout_.offsets[slot_index], parameters_[slot_index]);
}

void Bucket::take_memory() {
  at::NoGradGuard no_grad;
  flat_ = {at::empty({layout_.numel}, gradient_options())};
  // Padding between slots travels too, and shall not be whatever the memory held before.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t end = layout_.offsets[i] + parameters_[i].numel();
    const int64_t next = i + 1 < parameters_.size() ? layout_.offsets[i + 1] : layout_.numel;
    if (next > end) flat_.front().slice(0, end, next).zero_();
  }
}

}  // namespace flashstep
