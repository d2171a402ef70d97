#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/base/text.h"
#include "flashstep/comm/backends.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/unit_messages.h"

namespace flashstep {
namespace {

using at::Tensor;

// What gradients are summed in.
at::ScalarType sum_dtype(const ShardedTensors& tensors) {
  at::ScalarType dtype = at::kFloat;
  for (const ShardedTensor& t : tensors) dtype = c10::promoteTypes(dtype, t.memory.scalar_type());
  return dtype;
}

// Whether gradients of `t` are in messages: of those that are divided, or of the others. What was
// frozen from the beginning has none on any rank.
bool is_sent(const ShardedTensor& t, bool divided) {
  return t.is_trained && t.is_divided == divided;
}

// Elements of a message's row: the parts of one rank.
int64_t row_elements(const ShardedTensors& tensors, bool divided) {
  int64_t elements = 0;
  for (const ShardedTensor& t : tensors) elements += is_sent(t, divided) ? t.part : 0;
  return elements;
}

// (rows, part) gets what each rank's shard is made of.
void pack(const Tensor& place, ShardedTensor& t, double missing) {
  const Tensor flat = t.take_gradient(missing);
  if (!flat.defined()) {
    place.zero_();
    return;
  }
  const int64_t rows = t.numel / t.part, rest = t.numel - rows * t.part;
  if (rows > 0) place.slice(0, 0, rows).copy_(flat.slice(0, 0, rows * t.part).view({rows, t.part}));
  if (rows == place.size(0)) return;
  place.slice(0, rows, place.size(0)).zero_();
  if (rest > 0) place[rows].slice(0, 0, rest).copy_(flat.slice(0, rows * t.part, t.numel));
}

class CollectiveMessages : public UnitMessages {
 public:
  CollectiveMessages(const std::string& unit, at::Device device, const ShardGroups& groups)
      : gathering_(str("gathering the parameters of ", unit)),
        averaging_(str("averaging the gradients of ", unit)),
        device_(device),
        all_(*groups.all),
        group_(*groups.shards),
        replicas_(groups.replicas),
        coalesces_(can_coalesce(*groups.shards, device)) {}

  c10::DataPtr memory(size_t bytes) override {
    return c10::GetAllocator(device_.type())->allocate(bytes);
  }

  void start_gather(ShardedTensors& tensors, SideStream& stream) override {
    stream.run([&] {
      std::vector<Tensor> wholes, parts;
      for (const ShardedTensor& t : tensors) {
        if (!t.needs_memory()) continue;
        if (!t.is_divided || group_.world_size() == 1) {
          t.whole.copy_(t.memory);
          continue;
        }
        wholes.push_back(t.whole);
        parts.push_back(t.memory.to(t.whole.scalar_type()));
      }
      if (wholes.empty()) return;
      if (!coalesces_) {
        for (Tensor& part : parts) part = part.view(at::kByte);
        parts = {at::cat(parts).unsqueeze(0)};
        packed_ = at::empty({group_.world_size(), parts.front().numel()}, parts.front().options());
      }
      gather_ = group_.guarded(gathering_, [&] {
        c10d::ProcessGroup& ranks = group_.process_group();
        return coalesces_ ? ranks.allgather_into_tensor_coalesced(wholes, parts)
                          : ranks._allgather_base(packed_, parts.front());
      });
      gathered_ = std::move(parts);
      wholes_ = std::move(wholes);
    });
  }

  void finish_gather(SideStream& stream) override {
    stream.run([&] {
      // Where waiting fails all stays, as what it writes to must.
      if (gather_) group_.wait(gather_, gathering_);
      gather_.reset();
      gathered_.clear();
      if (packed_.defined()) unpack();
      wholes_.clear();
    });
    stream.join();
  }

  // The means are made on `stream`, which all use of them comes after.
  void start_reduction(ShardedTensors& tensors, SideStream& stream, double missing,
                       bool /*used_beside*/) override {
    for (const ShardedTensor& t : tensors) {
      if (t.tensor.grad().defined()) stream.keep(t.tensor.grad());
    }
    is_summed_ = false;
    is_captured_ = is_being_captured(device_);
    stream.run([&] {
      const int64_t ranks = group_.world_size();
      const at::TensorOptions options = at::TensorOptions(device_).dtype(sum_dtype(tensors));
      if (const int64_t elements = row_elements(tensors, /*divided=*/false)) {
        sum_ = at::zeros({1, elements}, options);
        pack_all(sum_, tensors, /*divided=*/false, missing);
      }
      const int64_t elements = row_elements(tensors, /*divided=*/true);
      if (elements == 0) return;
      const Tensor sent = at::empty({ranks, elements}, options.dtype(sent_dtype(tensors)));
      pack_all(sent, tensors, /*divided=*/true, missing);
      received_ = ranks == 1 ? sent : at::empty_like(sent);
      if (ranks == 1) return;
      std::vector<int64_t> equal;
      reduction_.work = group_.guarded(averaging_, [&] {
        Tensor to = received_, from = sent;
        return group_.process_group().alltoall_base(to, from, equal, equal);
      });
      reduction_.kept = {sent};
    });
  }

  void continue_reduction(const ShardedTensors& tensors, SideStream& stream) override {
    if (replicas_ != nullptr) stream.run([&] { sum_up(tensors); });
  }

  void finish_reduction(ShardedTensors& tensors, SideStream& stream) override {
    stream.run([&] {
      sum_up(tensors);
      if (reduction_.work) replicas_->wait(reduction_.work, averaging_);
      if (received_.defined()) add_means(received_, tensors, /*divided=*/true, stream);
      if (sum_.defined()) {
        Tensor rows = sum_;
        if (all_.world_size() > 1) {
          rows = at::empty({all_.world_size(), sum_.size(1)}, sum_.options());
          all_.wait(all_.guarded(averaging_,
                                 [&] { return all_.process_group()._allgather_base(rows, sum_); }),
                    averaging_);
        }
        add_means(sum_of_rows(rows, sum_.scalar_type()), tensors, /*divided=*/false, stream);
      }
      reduction_ = {};
      received_.reset();
      sum_.reset();
    });
  }

  // Where all ranks give up the others have started the same; else the wait ends with the group.
  void give_up(SideStream& stream) override {
    stream.run([&] {
      if (reduction_.work && is_captured_ == is_being_captured(device_))
        (is_summed_ ? *replicas_ : group_).wait(reduction_.work, averaging_);
    });
    reduction_ = {};
    received_.reset();
    sum_.reset();
  }

 private:
  // What travels, while it does.
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<Tensor> kept;  // until it has arrived
  };

  // Else a unit's parts travel packed. Not Gloo: in LibTorch 2.11 each of its threads writes the
  // name of the collective that it has ended into one std::string, without a lock.
  // ALLGATHER_COALESCED is too long to lie in the string itself, so that two that end together free
  // its memory twice. Nor what compares collectives first, which has none.
  static bool can_coalesce(const Group& group, at::Device device) {
    if (group.world_size() == 1) return false;
    const auto backend = group.process_group().getBackend(device.type());
    return backend->getBackendName() == "nccl" && !is_compared(*backend);
  }

  void unpack() {
    int64_t begin = 0;
    for (const Tensor& whole : wholes_) {
      const Tensor rows = whole.view({group_.world_size(), -1}).view(at::kByte);
      rows.copy_(packed_.slice(1, begin, begin + rows.size(1)));
      begin += rows.size(1);
    }
    packed_.reset();
  }

  // The dtype that all gradients have, or would have on a rank that lacks some: 16-bit ones travel
  // as such.
  static at::ScalarType sent_dtype(const ShardedTensors& tensors) {
    std::optional<at::ScalarType> dtype;
    for (const ShardedTensor& t : tensors) {
      const Tensor& gradient = t.tensor.grad();
      if (!is_sent(t, /*divided=*/true) || !(gradient.defined() || t.tensor.requires_grad()))
        continue;
      const at::ScalarType own =
          gradient.defined() ? gradient.scalar_type() : gradient_dtype(t.tensor);
      dtype = dtype ? c10::promoteTypes(*dtype, own) : own;
    }
    return dtype.value_or(sum_dtype(tensors));
  }

  static void pack_all(const Tensor& message, ShardedTensors& tensors, bool divided,
                       double missing) {
    int64_t offset = 0;
    for (ShardedTensor& t : tensors) {
      if (!is_sent(t, divided)) continue;
      pack(message.slice(1, offset, offset + t.part), t, missing);
      offset += t.part;
    }
  }

  // What the ranks of a copy have sent; the sum is on its way between the replicas then.
  void sum_up(const ShardedTensors& tensors) {
    if (is_summed_ || !received_.defined()) return;
    if (reduction_.work) group_.wait(reduction_.work, averaging_);
    is_summed_ = true;  // from here on the work is the replicas'
    reduction_ = {};
    received_ = sum_of_rows(received_, sum_dtype(tensors));
    if (replicas_ == nullptr) return;
    reduction_.kept = {received_};
    reduction_.work =
        flashstep::start_reduction(reduction_.kept, /*average=*/false, *replicas_, averaging_);
  }

  // rows (W, elements): what each rank has sent.
  static Tensor sum_of_rows(const Tensor& rows, at::ScalarType dtype) {
    Tensor sum = rows[0].to(dtype, /*non_blocking=*/false, /*copy=*/true);
    for (int64_t rank = 1; rank < rows.size(0); ++rank) sum.add_(rows[rank]);
    return sum;
  }

  // sum (elements): of all ranks.
  void add_means(const Tensor& sum, ShardedTensors& tensors, bool divided, SideStream& stream) {
    if (all_.world_size() > 1) sum.mul_(1.0 / static_cast<double>(all_.world_size()));
    int64_t offset = 0;
    for (ShardedTensor& t : tensors) {
      if (!is_sent(t, divided)) continue;
      t.add_gradient(sum.slice(0, offset, offset + t.own));
      if (t.tensor.grad().defined()) stream.hand_over(t.tensor.grad());
      offset += t.part;
    }
  }

  const std::string gathering_, averaging_;
  const at::Device device_;
  const Group &all_, &group_;  // all ranks, and those that divide a copy of the weights
  const Group* const replicas_;
  const bool coalesces_;
  c10::intrusive_ptr<c10d::Work> gather_;
  std::vector<Tensor> gathered_, wholes_;  // what is sent, and what arrives
  Tensor packed_;                          // (W, bytes): where it arrives, unless it coalesces
  Message reduction_;
  Tensor received_;  // (W, elements): what each rank has sent for this one's shards; or their sum
  Tensor sum_;       // (1, elements): of the tensors that are not divided
  bool is_summed_ = false;
  bool is_captured_ = false;  // the reduction was started in a capture
};

}  // namespace

int64_t ShardedTensor::elements_of(int rank) const {
  return is_divided ? std::clamp<int64_t>(numel - rank * part, 0, part) : numel;
}

Tensor ShardedTensor::take_gradient(double missing) {
  if (!is_trained) return {};
  Tensor gradient = std::exchange(tensor.mutable_grad(), {});
  if (!gradient.defined()) {
    if (!tensor.requires_grad()) return {};
    return at::full({numel}, missing, whole.options());
  }
  if (gradient.strides() != strides)
    gradient = at::empty_strided(sizes, strides, gradient.options()).copy_(gradient);
  return flat_view(gradient);
}

void ShardedTensor::add_gradient(const Tensor& mean) {
  if (!is_trained) return;
  Tensor before = std::exchange(earlier, {});
  Tensor& gradient = tensor.mutable_grad();
  if (!tensor.requires_grad() || (!has_gradient && !before.defined())) {
    gradient = std::move(before);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor added = mean.as_strided(shard.sizes(), shard.strides(), mean.storage_offset())
                           .to(before.defined() ? before.scalar_type() : gradient_dtype);
  gradient = before.defined() ? before.add_(added) : added;
}

std::unique_ptr<UnitMessages> make_collective_messages(const std::string& unit, at::Device device,
                                                       const ShardGroups& groups) {
  return std::make_unique<CollectiveMessages>(unit, device, groups);
}

}  // namespace flashstep
