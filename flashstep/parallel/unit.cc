#include "flashstep/parallel/unit.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {
namespace {

using at::Tensor;

// A message's parts begin at multiples of this: the widest vector loads (elements).
constexpr int64_t kPartAlignment = 4;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Views of a tensor that computing has saved for backward look into its storage: it keeps the
// storage, which loses and regains its memory.
void take_memory(const Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void free_memory(const Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
  storage->set_nbytes(0);
}

// (n, 1, 1) over the first n elements: no operation of a forward takes it for a weight.
Tensor as_shard(const Tensor& memory, int64_t numel) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return memory.as_strided({numel, 1, 1}, {1, 1, 1}, memory.storage_offset());
}

Tensor as_whole(const Tensor& memory, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return memory.as_strided(sizes, strides, memory.storage_offset());
}

}  // namespace

ShardedUnit::ShardedUnit(const UnitOfTensors& tensors, const Group& group,
                         const FullyShardOptions& options)
    : name_(tensors.name), group_(group) {
  at::NoGradGuard no_grad;
  if (!tensors.tensors.empty()) device_ = tensors.tensors.front().device();
  for (size_t i = 0; i < tensors.tensors.size(); ++i)
    add(tensors.tensors[i], tensors.names[i], options);
}

void ShardedUnit::add(const Tensor& tensor, const std::string& name,
                      const FullyShardOptions& options) {
  ShardedTensor t;
  t.tensor = tensor;
  t.name = name;
  t.sizes = tensor.sizes().vec();
  t.strides = gradient_strides(tensor);
  t.numel = tensor.numel();
  t.is_divided = options.shard ? options.shard(name, tensor) : tensor.dim() >= 2;
  const int64_t ranks = t.is_divided ? group_.world_size() : 1;
  const int64_t rank = t.is_divided ? group_.rank() : 0;
  t.part =
      divide_up(divide_up(std::max<int64_t>(t.numel, 1), ranks), kPartAlignment) * kPartAlignment;
  t.own = std::clamp<int64_t>(t.numel - rank * t.part, 0, t.part);
  int64_t& reached = t.is_divided ? divided_ : replicated_;
  t.offset = reached;
  reached += t.part;
  t.memory = at::zeros({t.part}, tensor.options().requires_grad(false));
  const int64_t begin = std::min(rank * t.part, t.numel);
  t.memory.slice(0, 0, t.own).copy_(flat_view(tensor.detach()).slice(0, begin, begin + t.own));
  t.shard = as_shard(t.memory, t.own);
  const at::ScalarType dtype = options.compute_dtype.value_or(tensor.scalar_type());
  if (ranks == 1 && dtype == tensor.scalar_type()) {
    t.whole = t.memory;
  } else {
    t.whole = at::empty({t.part * ranks}, t.memory.options().dtype(dtype));
  }
  t.view = as_whole(t.whole, t.sizes, t.strides);
  if (needs_memory(t)) free_memory(t.whole);
  t.tensor.set_data(t.shard);
  tensors_.push_back(std::move(t));
}

// Its whole is something else than the shard, seen in another shape.
bool ShardedUnit::needs_memory(const ShardedTensor& t) const { return !t.whole.is_same(t.memory); }

void ShardedUnit::start_gather(SideStream& stream) {
  if (state_ != State::kSharded) return;
  at::NoGradGuard no_grad;
  // On the current stream, whose earlier work may have used the same memory.
  for (const ShardedTensor& t : tensors_) {
    if (needs_memory(t)) take_memory(t.whole);
  }
  stream.run([&] {
    std::vector<Tensor> wholes, parts;
    for (const ShardedTensor& t : tensors_) {
      if (!needs_memory(t)) continue;
      if (!t.is_divided || group_.world_size() == 1) {
        t.whole.copy_(t.memory);
        continue;
      }
      wholes.push_back(t.whole);
      parts.push_back(t.memory.to(t.whole.scalar_type()));
    }
    if (wholes.empty()) return;
    gather_.work = group_.guarded(str("gathering the parameters of ", name_), [&] {
      return group_.process_group().allgather_into_tensor_coalesced(wholes, parts);
    });
    gather_.kept = std::move(parts);
  });
  state_ = State::kInFlight;
}

void ShardedUnit::finish_gather(SideStream& stream) {
  if (state_ == State::kWhole) return;
  at::NoGradGuard no_grad;
  stream.run([&] {
    if (gather_.work) group_.wait(gather_.work, str("gathering the parameters of ", name_));
    gather_ = {};
  });
  stream.join();
  for (ShardedTensor& t : tensors_) t.tensor.set_data(t.view);
  state_ = State::kWhole;
}

void ShardedUnit::reshard(SideStream& stream) {
  if (state_ == State::kSharded) return;
  if (state_ == State::kInFlight) finish_gather(stream);
  for (ShardedTensor& t : tensors_) {
    t.tensor.set_data(t.shard);
    if (needs_memory(t)) free_memory(t.whole);
  }
  state_ = State::kSharded;
}

int64_t ShardedUnit::gathered_bytes() const {
  int64_t bytes = 0;
  for (const ShardedTensor& t : tensors_) {
    if (needs_memory(t)) bytes += static_cast<int64_t>(t.whole.storage().nbytes());
  }
  return bytes;
}

// What gradients are summed in.
at::ScalarType ShardedUnit::sum_dtype() const {
  at::ScalarType dtype = at::kFloat;
  for (const ShardedTensor& t : tensors_) dtype = c10::promoteTypes(dtype, t.memory.scalar_type());
  return dtype;
}

// Row r of `message` (W, S) gets what rank r's shard is made of.
void ShardedUnit::pack(const Tensor& message, ShardedTensor& t, double missing) {
  const Tensor place = message.slice(1, t.offset, t.offset + t.part);
  Tensor gradient = std::exchange(t.tensor.mutable_grad(), {});
  if (!gradient.defined()) {
    place.fill_(t.tensor.requires_grad() ? missing : 0.0);
    return;
  }
  if (gradient.strides() != t.strides)
    gradient = at::empty_strided(t.sizes, t.strides, gradient.options()).copy_(gradient);
  const Tensor flat = flat_view(gradient);
  const int64_t rows = t.numel / t.part, rest = t.numel - rows * t.part;
  if (rows > 0) place.slice(0, 0, rows).copy_(flat.slice(0, 0, rows * t.part).view({rows, t.part}));
  if (rows == message.size(0)) return;
  place.slice(0, rows, message.size(0)).zero_();
  if (rest > 0) place[rows].slice(0, 0, rest).copy_(flat.slice(0, rows * t.part, t.numel));
}

void ShardedUnit::start_reduction(SideStream& stream, double missing) {
  at::NoGradGuard no_grad;
  const std::string what = str("averaging the gradients of ", name_);
  for (const ShardedTensor& t : tensors_) {
    if (t.tensor.grad().defined()) stream.keep(t.tensor.grad());
  }
  stream.run([&] {
    const int64_t ranks = group_.world_size();
    const at::TensorOptions options = at::TensorOptions(device_).dtype(sum_dtype());
    // In the dtype that all gradients have, which halves the bytes of 16-bit ones.
    std::optional<at::ScalarType> dtype;
    for (const ShardedTensor& t : tensors_) {
      if (!t.is_divided || !t.tensor.grad().defined()) continue;
      const at::ScalarType own = t.tensor.grad().scalar_type();
      dtype = dtype ? c10::promoteTypes(*dtype, own) : own;
    }
    reduction_.dtype = sum_dtype();
    if (replicated_ > 0) {
      reduction_.sum = at::zeros({1, replicated_}, options);
      for (ShardedTensor& t : tensors_) {
        if (!t.is_divided) pack(reduction_.sum, t, missing);
      }
    }
    if (divided_ == 0) return;
    const Tensor sent = at::empty({ranks, divided_}, options.dtype(dtype.value_or(sum_dtype())));
    for (ShardedTensor& t : tensors_) {
      if (t.is_divided) pack(sent, t, missing);
    }
    reduction_.received = ranks == 1 ? sent : at::empty_like(sent);
    if (ranks == 1) return;
    std::vector<int64_t> equal;
    reduction_.work = group_.guarded(what, [&] {
      Tensor to = reduction_.received, from = sent;
      return group_.process_group().alltoall_base(to, from, equal, equal);
    });
    reduction_.kept = {sent};
  });
  reshard(stream);
}

// Elements [offset, offset + own) of `flat` are this rank's gradient of `t`.
void ShardedUnit::add_gradient(ShardedTensor& t, const Tensor& flat, int64_t offset) {
  Tensor earlier = std::exchange(t.earlier, {});
  const bool is_trained = t.tensor.requires_grad();
  Tensor& gradient = t.tensor.mutable_grad();
  if (!is_trained || (!t.has_gradient && !earlier.defined())) {
    gradient = std::move(earlier);
    return;
  }
  const Tensor mean = as_shard(flat.slice(0, offset, offset + t.own), t.own);
  const Tensor own = mean.to(t.memory.scalar_type());
  gradient = earlier.defined() ? earlier.add_(own) : own;
}

void ShardedUnit::finish_reduction(SideStream& stream) {
  at::NoGradGuard no_grad;
  const std::string what = str("averaging the gradients of ", name_);
  stream.run([&] {
    const int64_t ranks = group_.world_size();
    if (reduction_.work) group_.wait(reduction_.work, what);
    if (reduction_.received.defined()) {
      Tensor sum = reduction_.received[0].to(reduction_.dtype, false, /*copy=*/true);
      for (int64_t rank = 1; rank < ranks; ++rank) sum.add_(reduction_.received[rank]);
      if (ranks > 1) sum.mul_(1.0 / static_cast<double>(ranks));
      for (ShardedTensor& t : tensors_) {
        if (t.is_divided) add_gradient(t, sum, t.offset);
      }
      stream.hand_over(sum);
    }
    if (reduction_.sum.defined()) {
      Tensor all = reduction_.sum;
      if (ranks > 1) {
        all = at::empty({ranks, replicated_}, reduction_.sum.options());
        Tensor own = reduction_.sum;
        group_.wait(
            group_.guarded(what, [&] { return group_.process_group()._allgather_base(all, own); }),
            what);
      }
      Tensor sum = all[0].clone();
      for (int64_t rank = 1; rank < ranks; ++rank) sum.add_(all[rank]);
      if (ranks > 1) sum.mul_(1.0 / static_cast<double>(ranks));
      for (ShardedTensor& t : tensors_) {
        if (!t.is_divided) add_gradient(t, sum, t.offset);
      }
      stream.hand_over(sum);
    }
    reduction_ = {};
  });
}

std::vector<Tensor> ShardedUnit::gather_copies(bool keeps) const {
  at::NoGradGuard no_grad;
  std::vector<Tensor> copies;
  for (const ShardedTensor& t : tensors_) {
    Tensor memory = t.memory;
    if (t.is_divided && group_.world_size() > 1) {
      Tensor own = t.memory;
      memory = at::empty({t.part * group_.world_size()}, t.memory.options());
      const std::string what = str("gathering ", t.name);
      group_.wait(
          group_.guarded(what, [&] { return group_.process_group()._allgather_base(memory, own); }),
          what);
    }
    if (keeps) copies.push_back(as_whole(memory, t.sizes, t.strides).clone());
  }
  return copies;
}

}  // namespace flashstep
