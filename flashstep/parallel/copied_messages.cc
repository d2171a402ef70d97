// Units that travel by copies from GPU to GPU. Whole tensors lie in slots: memory that the other
// ranks know, which every rank writes its shards into. So a gather takes no memory, in a CUDA graph
// neither, and what it sends takes no multiprocessor.
//
// The ranks' side streams do the same in the same order:
//   gather:    barrier (the slot is free everywhere), shards to all, barrier (they have arrived)
//   reduction: gradients to who sums them up, barrier (they have arrived)
// What a reduction sends goes to one of two inboxes in turn: a rank has summed up what an inbox
// held when it comes to the barrier of the reduction that uses the other one. Sums and copies of a
// rank's own shards are kernels, which may wait for a product that holds all multiprocessors. They
// have streams of their own, so that the ranks' messages do not wait with them. Between replicas
// NCCL averages the means, in the stream of the messages.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/comm/peer_mean.h"
#include "flashstep/error.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/unit_messages.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr int64_t kAlignment = 16;  // bytes, of what vectors read

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Of t's gradient that one rank sends another, at most.
int64_t bytes_to_another(const ShardedTensor& t) {
  return round_up((t.is_divided ? t.part : t.numel) * t.whole.element_size(), kAlignment);
}

// Memory that all ranks know by one number, and whether a unit's tensors lie in it.
class Slots {
 public:
  explicit Slots(PeerCopies& copies) : copies_(copies) {}

  // The smallest free one of at least so many bytes; a new one where there is none. All ranks call
  // it in the same order.
  size_t take(size_t bytes, at::Device device) {
    {
      const std::lock_guard lock(mutex_);
      Slot* best = nullptr;
      for (Slot& slot : slots_) {
        const bool fits = !slot.is_taken && slot.memory.nbytes() >= bytes;
        if (fits && (best == nullptr || slot.memory.nbytes() < best->memory.nbytes())) best = &slot;
      }
      if (best != nullptr) {
        best->is_taken = true;
        return best->number;
      }
    }
    const Tensor memory = share(bytes, device);
    const std::lock_guard lock(mutex_);
    slots_.push_back({memory, shared_ - 1, true});
    return shared_ - 1;
  }
  void give_back(size_t number) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
      if (slot.number == number) slot.is_taken = false;
    }
  }
  // Memory that is nobody's slot; its number is the next.
  Tensor share(size_t bytes, at::Device device) {
    require(!is_being_captured(device),
            "[fully sharded] expected units to be used in a CUDA graph as in the steps before, got "
            "one that needs memory which other ranks do not know");
    const Tensor memory =
        at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(device).dtype(at::kByte));
    if (!copies_.share({memory})) {
      throw MachineError(
          "[fully sharded] expected memory that the other GPUs of the machine can "
          "write into, but their drivers refuse it now");
    }
    ++shared_;
    return memory;
  }
  size_t next_number() const { return shared_; }

 private:
  struct Slot {
    Tensor memory;
    size_t number;
    bool is_taken;
  };
  PeerCopies& copies_;
  std::mutex mutex_;  // the engine, which ends the last leases, may end in any thread
  std::vector<Slot> slots_;
  size_t shared_ = 0;
};

struct Shared {
  Shared(const ShardGroups& groups, at::Device at_device, std::unique_ptr<PeerCopies> peer_copies)
      : group(*groups.shards),
        all(*groups.all),
        replicas(groups.replicas),
        device(at_device),
        copies(std::move(peer_copies)),
        slots(*copies),
        own_shards(at_device),
        sums(at_device) {}
  const Group &group, &all;
  const Group* const replicas;
  const at::Device device;
  std::unique_ptr<PeerCopies> copies;
  Slots slots;
  std::array<Tensor, 2> inboxes;  // (W - 1, bytes): what each other rank has sent
  std::array<size_t, 2> inbox_numbers{};
  size_t next_inbox = 0;
  SideStream own_shards, sums;
  std::optional<c10::Event> summed;  // the last of this backward; none between replicas
  bool can_be_captured = false;
  int64_t barriers = 0;  // since begin(), or the last end() in a graph
  bool was_captured = false;

  void barrier() {
    copies->stream_barrier();
    ++barriers;
  }
};

// What a whole tensor's memory knows of its slot.
struct Lease {
  std::shared_ptr<Shared> shared;
  size_t number;
};
void end_lease(void* context) {
  const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
  lease->shared->slots.give_back(lease->number);
}

class CopiedMessages : public UnitMessages {
 public:
  explicit CopiedMessages(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  c10::DataPtr memory(size_t bytes) override {
    slot_ = shared_->slots.take(bytes, shared_->device);
    void* const begin = shared_->copies->shared(slot_).mutable_data_ptr();
    return {begin, new Lease{shared_, slot_}, &end_lease, shared_->device};
  }

  void start_gather(ShardedTensors& tensors, SideStream& stream) override {
    sources_.clear();
    for (const ShardedTensor& t : tensors) {
      if (!t.needs_memory()) {
        sources_.emplace_back();
      } else if (t.is_divided) {
        sources_.push_back(compute_copy(t.tensor, t.whole.scalar_type()).view({-1}));
      } else {
        sources_.push_back(t.memory.slice(0, 0, t.own));
      }
    }
    stream.run([&] {
      shared_->own_shards.run([&] { copy_own_shards(tensors); });
      is_copied_ = shared_->own_shards.mark();
      shared_->barrier();
      shared_->copies->push_to_all([&](int to) {
        for (size_t i = 0; i < tensors.size(); ++i) {
          const ShardedTensor& t = tensors[i];
          if (!t.needs_memory() || !t.is_divided) continue;
          const int64_t begin = shared_->group.rank() * t.part * t.whole.element_size();
          shared_->copies->push_bytes(to, slot_, t.place + begin, sources_[i].const_data_ptr(),
                                      sources_[i].nbytes());
        }
      });
      shared_->barrier();
      arrived_ = stream.mark();
    });
  }

  void finish_gather(SideStream& stream) override {
    stream.await(std::exchange(arrived_, {}));
    stream.await(std::exchange(is_copied_, {}));
    sources_.clear();
  }

  void start_reduction(ShardedTensors& tensors, SideStream& stream, double missing,
                       bool used_beside) override {
    gradients_.clear();  // of one that an exception has broken off
    means_.clear();
    used_beside_ = used_beside;
    size_t place = 0;
    for (ShardedTensor& t : tensors) {
      Tensor flat = t.take_gradient(missing);
      if (flat.defined()) {
        flat = flat.to(t.whole.scalar_type());
        const int64_t begin = t.is_divided ? std::min(shared_->group.rank() * t.part, t.numel) : 0;
        means_.push_back({flat.slice(0, begin, begin + t.own), {}, place});
      } else {
        means_.emplace_back();
      }
      gradients_.push_back(std::move(flat));
      place += bytes_to_another(t);
    }
    if (!used_beside) make_means(tensors);
    stream.run([&] {
      if (used_beside) make_means(tensors);
      send(tensors);
    });
    done_ = shared_->replicas != nullptr ? stream.mark() : shared_->sums.mark();
  }

  void finish_reduction(ShardedTensors& tensors, SideStream& stream) override {
    const auto done = std::exchange(done_, {});
    stream.await(done);
    const auto add = [&] {
      for (size_t i = 0; i < means_.size(); ++i) tensors[i].add_gradient(means_[i].mean);
      means_.clear();
    };
    if (used_beside_) {
      stream.run([&] {
        stream.await(done);
        add();
      });
    } else {
      add();
    }
    gradients_.clear();
  }

  void give_up(SideStream& /*stream*/) override {
    arrived_.reset();
    is_copied_.reset();
    done_.reset();
    gradients_.clear();
    means_.clear();
  }

 private:
  // Of the current stream's memory: where another one frees it, that one may get it again while it
  // is still read.
  void make_means(const ShardedTensors& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& own = means_[i].own;
      if (!own.defined()) continue;
      const bool widens =
          own.element_size() == 2 &&
          (shared_->replicas != nullptr || tensors[i].gradient_dtype != own.scalar_type());
      means_[i].mean =
          at::empty({tensors[i].own}, own.options().dtype(widens ? at::kFloat : own.scalar_type()));
    }
  }

  void send(const ShardedTensors& tensors) const {
    const size_t inbox = std::exchange(shared_->next_inbox, 1 - shared_->next_inbox);
    const Tensor& received = shared_->inboxes[inbox];
    shared_->copies->push_to_all([&](int to) {
      const auto row =
          static_cast<size_t>(row_of_rank(shared_->group.rank(), to) * received.stride(0));
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!gradients_[i].defined()) continue;
        const int64_t begin = tensors[i].is_divided ? to * tensors[i].part : 0;
        const int64_t bytes = tensors[i].elements_of(to) * gradients_[i].element_size();
        if (bytes == 0) continue;
        shared_->copies->push_bytes(to, shared_->inbox_numbers[inbox], row + means_[i].place,
                                    static_cast<const char*>(gradients_[i].const_data_ptr()) +
                                        begin * gradients_[i].element_size(),
                                    static_cast<size_t>(bytes));
      }
    });
    shared_->sums.await(std::exchange(shared_->summed, {}));  // of the other inbox
    shared_->barrier();
    if (shared_->replicas == nullptr) {
      shared_->sums.run([&] { sum_up(received); });
      shared_->summed = shared_->sums.mark();
      return;
    }
    sum_up(received);
    average_between_replicas(tensors);
  }

  void copy_own_shards(const ShardedTensors& tensors) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ShardedTensor& t = tensors[i];
      if (!t.needs_memory()) continue;
      const int64_t begin = t.is_divided ? shared_->group.rank() * t.part : 0;
      t.whole.slice(0, begin, begin + t.own).copy_(sources_[i]);
    }
  }

  void sum_up(const Tensor& received) const {
    std::vector<MeanOfReceived> expected;
    for (const MeanOfReceived& mean : means_) {
      if (mean.mean.defined() && mean.mean.numel() > 0) expected.push_back(mean);
    }
    std::stable_sort(expected.begin(), expected.end(), [](const auto& a, const auto& b) {
      return a.own.scalar_type() < b.own.scalar_type();  // one launch for those of a dtype
    });
    take_means(expected, received, shared_->group.rank());
  }

  // What every rank has whole is averaged over all of them, by one communicator: the same bits.
  void average_between_replicas(const ShardedTensors& tensors) const {
    std::map<std::pair<bool, at::ScalarType>, std::vector<Tensor>> by_kind;  // for a message each
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& mean = means_[i].mean;
      if (mean.defined() && mean.numel() > 0)
        by_kind[{tensors[i].is_divided, mean.scalar_type()}].push_back(mean);
    }
    constexpr const char* kWhat = "averaging gradients between replicas";
    for (auto& [kind, means] : by_kind) {
      const Group& group = kind.first ? *shared_->replicas : shared_->all;
      group.wait(flashstep::start_reduction(means, /*average=*/true, group, kWhat), kWhat);
    }
  }

  const std::shared_ptr<Shared> shared_;
  size_t slot_ = 0;              // that the whole tensors lie in
  std::vector<Tensor> sources_;  // what is sent of each, until it has arrived
  std::optional<c10::Event> arrived_, is_copied_, done_;
  std::vector<Tensor> gradients_;      // of whole tensors, flat, until they are sent
  std::vector<MeanOfReceived> means_;  // of the shards
  bool used_beside_ = false;           // the means
};

class CudaUnitCopies : public UnitCopies {
 public:
  explicit CudaUnitCopies(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  bool can_be_captured() const override { return shared_->can_be_captured; }
  void begin() override {
    const bool is_captured = is_being_captured(shared_->device);
    if (!is_captured || !shared_->was_captured) shared_->barriers = 0;
    shared_->was_captured = is_captured;
  }
  // An even number of barriers, as a graph must, and nothing beside it is left in flight.
  void end(SideStream& stream) override {
    stream.run([&] {
      stream.await(std::exchange(shared_->summed, {}));
      if (shared_->barriers % 2 != 0) shared_->barrier();
    });
  }
  void give_up(SideStream& stream) override {
    shared_->summed.reset();
    shared_->next_inbox = 0;  // ranks may have come to different ones
    if (is_being_captured(shared_->device)) return;
    stream.run([&] {
      shared_->sums.join();
      shared_->own_shards.join();
    });
  }
  std::unique_ptr<UnitMessages> messages() override {
    return std::make_unique<CopiedMessages>(shared_);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<UnitCopies> make_unit_copies(const ShardGroups& groups, at::Device device,
                                             const std::vector<const ShardedTensors*>& units) {
  const Group& group = *groups.shards;
  auto copies = make_peer_copies(group, device);
  bool captures = copies && copies->can_be_captured();
  if (groups.replicas != nullptr) {  // machines may differ
    const std::vector<int64_t> all =
        groups.all->all_reduce(std::vector<int64_t>{copies != nullptr, captures}, Reduce::kMin);
    if (all[0] == 0) return nullptr;
    captures = all[1] == 1;
  }
  if (!copies) return nullptr;
  int64_t most = kAlignment;
  for (const ShardedTensors* unit : units) {
    int64_t bytes = 0;
    for (const ShardedTensor& t : *unit) bytes += bytes_to_another(t);
    most = std::max(most, bytes);
  }
  auto shared = std::make_shared<Shared>(groups, device, std::move(copies));
  shared->can_be_captured = captures;
  for (size_t i = 0; i < shared->inboxes.size(); ++i) {
    shared->inbox_numbers[i] = shared->slots.next_number();
    const int64_t rows = group.world_size() - 1;
    shared->inboxes[i] =
        shared->slots.share(static_cast<size_t>(rows * most), device).view({rows, most});
  }
  return std::make_unique<CudaUnitCopies>(std::move(shared));
}

}  // namespace flashstep
