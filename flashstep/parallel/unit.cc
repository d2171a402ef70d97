#include "flashstep/parallel/unit.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/base/text.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {
namespace {

using at::Tensor;

// Parts begin at multiples of this: the widest vector loads (elements).
constexpr int64_t kPartAlignment = 4;
// And whole tensors in the unit's memory at multiples of this: the widest loads of matrix products.
constexpr int64_t kPlaceAlignment = 16;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Views of a tensor that computing has saved for backward look into its storage: it keeps the
// storage, which loses and regains its memory.
void give_memory(const Tensor& room, c10::DataPtr memory, int64_t bytes) {
  c10::StorageImpl* const storage = room.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

void free_memory(const Tensor& room) {
  give_memory(room, room.storage().unsafeGetStorageImpl()->allocator()->allocate(0), 0);
}

// (n, 1, 1), or with more dimensions, over the first n elements. It has more than the whole, so
// that convolutions do not take it for a weight, and nothing is added to a whole by broadcasting.
Tensor as_shard(const Tensor& memory, int64_t numel, size_t dims_of_whole) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<int64_t> sizes(std::max<size_t>(3, dims_of_whole + 1), 1);
  const std::vector<int64_t> strides = sizes;
  sizes[0] = numel;
  return memory.as_strided(sizes, strides, memory.storage_offset());
}

Tensor as_whole(const Tensor& memory, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return memory.as_strided(sizes, strides, memory.storage_offset());
}

// Whether the tensor still looks into the memory that it was given here.
bool is_over(const Tensor& tensor, const Tensor& given) {
  const auto* const storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage == given.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         tensor.storage_offset() == given.storage_offset() &&
         tensor.scalar_type() == given.scalar_type() && tensor.sizes() == given.sizes();
}

std::string kind_of(const Tensor& tensor) {
  return flashstep::str(c10::toString(tensor.scalar_type()), " of shape ", tensor.sizes(), " on ",
                        tensor.device());
}

}  // namespace

ShardedUnit::ShardedUnit(const UnitOfTensors& tensors, const Group& group,
                         const FullyShardOptions& options)
    : name_(tensors.name), group_(group) {
  at::NoGradGuard no_grad;
  if (!tensors.tensors.empty()) device_ = options.device.value_or(tensors.tensors.front().device());
  for (size_t i = 0; i < tensors.tensors.size(); ++i)
    add(tensors.tensors[i], tensors.names[i], options);
  make_room();
  for (ShardedTensor& t : tensors_) t.tensor.set_data(t.shard);
}

void ShardedUnit::add(const Tensor& tensor, const std::string& name,
                      const FullyShardOptions& options) {
  ShardedTensor t;
  t.tensor = tensor;
  t.name = name;
  t.sizes = tensor.sizes().vec();
  t.strides = gradient_strides(tensor);
  t.gradient_dtype = gradient_dtype(tensor);
  t.numel = tensor.numel();
  t.is_trained = tensor.requires_grad();
  t.is_divided = options.shard ? options.shard(name, tensor) : tensor.dim() >= 2;
  const int64_t ranks = t.is_divided ? group_.world_size() : 1;
  const int64_t rank = t.is_divided ? group_.rank() : 0;
  t.part =
      divide_up(divide_up(std::max<int64_t>(t.numel, 1), ranks), kPartAlignment) * kPartAlignment;
  t.own = std::clamp<int64_t>(t.numel - rank * t.part, 0, t.part);
  t.memory = at::zeros({t.part}, tensor.options().device(device_).requires_grad(false));
  const int64_t begin = std::min(rank * t.part, t.numel);
  Tensor values;
  if (options.fill) {
    values = at::empty({t.own}, at::kFloat);
    options.fill(name, values, begin);
  } else {
    values = flat_view(tensor.detach()).slice(0, begin, begin + t.own);
  }
  t.memory.slice(0, 0, t.own).copy_(values);
  t.shard = t.is_divided ? as_shard(t.memory, t.own, t.sizes.size())
                         : as_whole(t.memory, t.sizes, t.strides);
  const bool casts = options.compute_dtype && (t.is_divided || options.cast_undivided);
  const at::ScalarType dtype = casts ? *options.compute_dtype : tensor.scalar_type();
  if (ranks == 1 && dtype == tensor.scalar_type()) {
    t.whole = t.memory;
  } else {
    t.whole = at::empty({0}, t.memory.options().dtype(dtype));
  }
  casts_ = casts_ || dtype != tensor.scalar_type();
  tensors_.push_back(std::move(t));
}

// Tensors of one shape lie one behind the other, without a gap where ranks divide them evenly, so
// that a product can take them together (ops/compute_copy.h): queries, keys and values, say.
void ShardedUnit::make_room() {
  std::vector<ShardedTensor*> order;
  for (ShardedTensor& t : tensors_) {
    const auto same = std::find_if(order.rbegin(), order.rend(), [&](const ShardedTensor* other) {
      return other->sizes == t.sizes && other->strides == t.strides;
    });
    if (t.needs_memory()) order.insert(same == order.rend() ? order.end() : same.base(), &t);
  }
  const auto numel = [&](const ShardedTensor& t) {
    return t.part * (t.is_divided ? group_.world_size() : 1);
  };
  for (ShardedTensor* t : order) {
    t->place = divide_up(room_bytes_, kPlaceAlignment) * kPlaceAlignment;
    room_bytes_ = t->place + numel(*t) * t->whole.element_size();
  }
  room_ = at::empty({room_bytes_}, at::TensorOptions(device_).dtype(at::kByte));
  for (ShardedTensor* t : order)
    t->whole.set_(room_.storage(), t->place / t->whole.element_size(), {numel(*t)}, {1});
  for (ShardedTensor& t : tensors_) t.view = as_whole(t.whole, t.sizes, t.strides);
  free_memory(room_);
}

bool ShardedUnit::has_trained() const {
  return std::ranges::any_of(tensors_,
                             [](const ShardedTensor& t) { return t.tensor.requires_grad(); });
}
bool ShardedUnit::has_frozen() const {
  return std::ranges::any_of(tensors_,
                             [](const ShardedTensor& t) { return !t.tensor.requires_grad(); });
}

void ShardedUnit::take_values() {
  at::NoGradGuard no_grad;
  for (ShardedTensor& t : tensors_) {
    const Tensor& given = state_ == State::kWhole ? t.view : t.shard;
    if (is_over(t.tensor, given)) continue;
    require(state_ == State::kSharded && t.tensor.layout() == at::kStrided &&
                kind_of(t.tensor) == kind_of(t.shard),
            "[fully sharded] expected ", t.name, " as it was wrapped, ", kind_of(given),
            ", but it was moved, converted or given other values, ", kind_of(t.tensor),
            ": move and convert a module before wrapping it; load_full_parameters() takes whole ",
            "values");
    require(!is_being_captured(device_),
            "[fully sharded] expected values to be given before a step ",
            "is captured, got new ones of ", t.name, ": every replay would write them again");
    t.shard.copy_(t.tensor.detach());
    t.tensor.set_data(t.shard);
    note_written(t.tensor);
  }
}

void ShardedUnit::start_gather(SideStream& stream) {
  if (state_ != State::kSharded) return;
  at::NoGradGuard no_grad;
  take_values();
  // On the current stream, whose earlier work may have used the same memory.
  if (room_bytes_ > 0)
    give_memory(room_, messages_->memory(static_cast<size_t>(room_bytes_)), room_bytes_);
  state_ = State::kInFlight;  // also after an exception: the memory is given back
  messages_->start_gather(tensors_, stream);
}

void ShardedUnit::finish_gather(SideStream& stream) {
  if (state_ == State::kWhole) return;
  at::NoGradGuard no_grad;
  waits_ = true;
  messages_->finish_gather(stream);
  waits_ = false;
  for (ShardedTensor& t : tensors_) t.tensor.set_data(t.view);
  if (casts_) ++accumulators_;
  state_ = State::kWhole;
}

void ShardedUnit::reshard(SideStream& stream) {
  if (state_ == State::kSharded) return;
  if (state_ == State::kInFlight) finish_gather(stream);
  for (ShardedTensor& t : tensors_) t.tensor.set_data(t.shard);
  free_memory(room_);
  state_ = State::kSharded;
}

bool ShardedUnit::lends(const Tensor& tensor) const {
  return state_ == State::kWhole && tensor.has_storage() &&
         tensor.storage().is_alias_of(room_.storage());
}

void ShardedUnit::start_reduction(SideStream& stream, double missing, bool used_beside) {
  at::NoGradGuard no_grad;
  messages_->start_reduction(tensors_, stream, missing, used_beside);
}

void ShardedUnit::finish_reduction(SideStream& stream) {
  at::NoGradGuard no_grad;
  messages_->finish_reduction(tensors_, stream);
}

Tensor ShardedUnit::gather_copy(const ShardedTensor& t) const {
  at::NoGradGuard no_grad;
  if (!t.is_divided || group_.world_size() == 1)
    return as_whole(t.memory, t.sizes, t.strides).clone();
  Tensor own = t.memory;
  Tensor memory = at::empty({t.part * group_.world_size()}, t.memory.options());
  const std::string what = str("gathering ", t.name);
  group_.wait(
      group_.guarded(what, [&] { return group_.process_group()._allgather_base(memory, own); }),
      what);
  return as_whole(memory, t.sizes, t.strides);
}

}  // namespace flashstep
