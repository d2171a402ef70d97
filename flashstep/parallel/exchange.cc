#include "flashstep/parallel/exchange.h"

#include <map>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/comm/outside_collectives.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/gradient_scatter.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr const char* kSendingUpdates = "sending updated parameters";

// Rounds that travel at a time on Gloo, whose messages are copies: one is sent while the next is
// being filled.
constexpr size_t kRoundsInFlight = 2;

c10::intrusive_ptr<c10d::Work> broadcast(const Tensor& tensor, int owner, const Group& group) {
  std::vector<Tensor> message = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = owner;
  return group.guarded(kSendingUpdates,
                       [&] { return group.process_group().broadcast(message, options); });
}

c10::intrusive_ptr<c10d::Work> gather(Tensor flat, const Group& group) {
  Tensor own = part_of(flat, group.rank(), group.world_size());
  return group.guarded(kSendingUpdates,
                       [&] { return group.process_group()._allgather_base(flat, own); });
}

// One launch for all collectives that `body` starts.
template <typename Body>
c10::intrusive_ptr<c10d::Work> in_one_launch(const Group& group, Body&& body) {
  group.guarded(kSendingUpdates, [&] { group.process_group().startCoalescing(at::kCUDA); });
  body();
  return group.guarded(kSendingUpdates,
                       [&] { return group.process_group().endCoalescing(at::kCUDA); });
}

}  // namespace

void Exchange::start(const std::vector<Tensor>& tensors, const std::vector<int>& owners) {
  if (group_.world_size() == 1 || tensors.empty()) return;
  at::NoGradGuard no_grad;
  transport_ = transport_of(tensors, group_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] != group_.rank()) note_written(tensors[i]);
  }
  if (!goes_through_nccl(tensors, group_)) {
    start_in_pieces(tensors, owners);
    return;
  }
  if (can_copy(tensors)) {
    copy([&](int to) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (owners[i] == group_.rank())
          copies_->push(to, target(tensors[i]).number, flat_view(tensors[i]), 0);
      }
    });
    for (size_t i = 0; i < tensors.size(); ++i)
      target(tensors[i]).is_awaited = owners[i] != group_.rank();
    return;
  }
  auto work = in_one_launch(group_, [&] {
    for (size_t i = 0; i < tensors.size(); ++i) broadcast(flat_view(tensors[i]), owners[i], group_);
  });
  rounds_.push_back({{std::move(work), {}, {}}});
}

void Exchange::start_gather(const std::vector<Tensor>& flats) {
  if (group_.world_size() == 1 || flats.empty()) return;
  at::NoGradGuard no_grad;
  transport_ = transport_of(flats, group_);
  std::vector<Message> round;
  if (goes_through_nccl(flats, group_)) {
    if (can_copy(flats)) {
      copy([&](int to) {
        for (const Tensor& flat : flats) {
          const Tensor own = part_of(flat, group_.rank(), group_.world_size());
          copies_->push(to, target(flat).number, own, group_.rank() * own.numel());
        }
      });
      for (const Tensor& flat : flats) target(flat).is_awaited = true;
      return;
    }
    auto work = in_one_launch(group_, [&] {
      for (const Tensor& flat : flats) gather(flat, group_);
    });
    round.push_back({std::move(work), {}, {}});
  } else {
    limit(kRoundsInFlight - 1);
    for (const Tensor& flat : flats) round.push_back({gather(flat, group_), flat, {}});
  }
  rounds_.push_back(std::move(round));
}

void Exchange::start_in_pieces(const std::vector<Tensor>& tensors, const std::vector<int>& owners) {
  limit(kRoundsInFlight - 1);
  std::map<std::pair<std::string, int>, std::vector<Tensor>> pieces;  // by kind and owner
  for (size_t i = 0; i < tensors.size(); ++i) {
    // The device's type, for its number differs from rank to rank.
    const std::string kind =
        flashstep::str(tensors[i].device().type(), ' ', c10::toString(tensors[i].scalar_type()));
    pieces[{kind, owners[i]}].push_back(tensors[i]);
  }
  std::vector<Message> round;
  for (auto& [key, piece] : pieces) {
    const int owner = key.second;
    std::vector<Tensor> flat_parts;
    int64_t numel = 0;
    for (const Tensor& tensor : piece) {
      flat_parts.push_back(flat_view(tensor));
      numel += tensor.numel();
    }
    const bool is_own = owner == group_.rank();
    Tensor flat = is_own ? at::cat(flat_parts) : at::empty({numel}, flat_parts.front().options());
    auto work = broadcast(flat, owner, group_);
    round.push_back({std::move(work), flat, is_own ? std::vector<Tensor>() : std::move(piece)});
  }
  rounds_.push_back(std::move(round));
}

void Exchange::take(const Message& message) {
  if (message.work) group_.wait(message.work, kSendingUpdates);
  int64_t offset = 0;
  for (const Tensor& tensor : message.tensors) {
    flat_view(tensor).copy_(message.flat.slice(0, offset, offset + tensor.numel()));
    offset += tensor.numel();
  }
}

// Takes the oldest rounds until at most `rounds` are in flight.
void Exchange::limit(size_t rounds) {
  at::NoGradGuard no_grad;
  while (rounds_.size() > rounds) {
    for (const Message& message : rounds_.front()) take(message);
    rounds_.erase(rounds_.begin());
  }
}

void Exchange::begin() {
  if (is_copying_) copy_stream_->join();
  is_copying_ = false;
  for (auto& [identity, target] : targets_) target.is_awaited = false;
}

// Makes the copies at the first call, if all ranks want them.
void Exchange::make_copies(at::Device device) {
  if (asked_) return;
  asked_ = true;
  if (group_.outside() == nullptr) {  // a group that may know no CPU
    may_copy_ = false;
    return;
  }
  may_copy_ = group_.all_reduce(int64_t{may_copy_}, Reduce::kMin) == 1;
  if (may_copy_) copies_ = make_peer_copies(group_, device);
  may_copy_ = copies_ != nullptr;
  if (may_copy_) copy_stream_.emplace(group_, device);
}

// Shares what the copies do not know yet.
bool Exchange::can_copy(const std::vector<Tensor>& tensors) {
  const at::Device device = tensors.front().device();
  // Then no host may ask another one: what copies do not know yet, they do not carry.
  const bool captured = is_being_captured(device);
  if (captured && (copies_ == nullptr || !copies_->can_be_captured())) return false;
  make_copies(device);
  for (const Tensor& tensor : tensors) may_copy_ = may_copy_ && tensor.device() == device;
  if (!may_copy_) return false;
  std::vector<Tensor> unknown;
  for (const Tensor& tensor : tensors) {
    const auto found = targets_.find(tensor.unsafeGetTensorImpl());
    if (found == targets_.end()) {
      unknown.push_back(tensor);
      continue;
    }
    const Tensor& memory = copies_->shared(found->second.number);
    require(memory.const_data_ptr() == found->second.memory,
            "[ShardedOptimizer] expected the memory of the parameter of shape ", tensor.sizes(),
            " to stay where it was, into which other ranks write; its storage was resized");
    if (memory.nbytes() != tensor.nbytes() || memory.scalar_type() != tensor.scalar_type())
      unknown.push_back(tensor);
  }
  if (unknown.empty()) return true;
  if (captured) return false;
  if (!copies_->share(unknown)) {
    finish_copies();
    may_copy_ = false;
    return false;
  }
  for (const Tensor& tensor : unknown) {
    const void* const memory = copies_->shared(shared_).const_data_ptr();
    targets_.insert_or_assign(tensor.unsafeGetTensorImpl(), Target{shared_++, memory, tensor});
  }
  return true;
}

template <typename PushTo>
void Exchange::copy(PushTo&& push_to) {
  group_.check(kSendingUpdates);
  transport_ = kCopies;
  group_.guarded(kSendingUpdates, [&] {
    copy_stream_->run([&] {
      if (!is_copying_) copies_->stream_barrier();  // others have read the old values
      is_copying_ = true;
      copies_->push_to_all(push_to);
    });
  });
}

void Exchange::finish_copies() {
  if (!is_copying_) return;
  group_.check(kSendingUpdates);
  group_.guarded(kSendingUpdates, [&] { copy_stream_->run([&] { copies_->stream_barrier(); }); });
  copy_stream_->join();
  is_copying_ = false;
  for (auto& [identity, target] : targets_) {
    const Tensor& arrived = copies_->shared(target.number);
    if (target.is_awaited && arrived.const_data_ptr() != target.tensor.const_data_ptr()) {
      flat_view(target.tensor).copy_(arrived);
    }
    target.is_awaited = false;
  }
}

void Exchange::finish() {
  at::NoGradGuard no_grad;
  finish_copies();
  limit(0);
}

}  // namespace flashstep
