// Sending parameters from their owners to all ranks (sharded_optimizer.h).
#include <algorithm>
#include <map>
#include <utility>

#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/sharded_optimizer.h"

namespace flashstep::parallel {
namespace {

using torch::Tensor;

constexpr const char* kWhat = "sending updated parameters";

// What one rank sends at a time on Gloo, which copies into a flat message: the messages of all
// ranks lie in memory together.
constexpr int64_t kPieceBytes = 16 << 20;

// Tensors of one owner, device and dtype that travel in one message.
struct Piece {
  int owner;
  std::vector<Tensor> tensors;
  int64_t bytes = 0;
};

// Pieces of one owner after another's, so that consecutive ones are sent by different ranks.
std::vector<Piece> make_pieces(const std::vector<Tensor>& tensors, const std::vector<int>& owners) {
  std::map<std::pair<std::string, int>, std::vector<Piece>> by_kind;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& pieces = by_kind[{
        flashstep::str(tensors[i].device(), c10::toString(tensors[i].scalar_type())), owners[i]}];
    if (pieces.empty() || pieces.back().bytes >= kPieceBytes) pieces.push_back({owners[i], {}});
    pieces.back().tensors.push_back(tensors[i]);
    pieces.back().bytes += static_cast<int64_t>(tensors[i].nbytes());
  }
  std::vector<Piece> result;
  for (size_t round = 0, added = 1; added > 0; ++round) {
    added = 0;
    for (auto& [kind, pieces] : by_kind) {
      if (round >= pieces.size()) continue;
      result.push_back(std::move(pieces[round]));
      ++added;
    }
  }
  return result;
}

c10::intrusive_ptr<c10d::Work> broadcast(const Tensor& tensor, int owner,
                                         const comm::Group& group) {
  std::vector<Tensor> message = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = owner;
  return group.guarded(kWhat, [&] { return group.process_group().broadcast(message, options); });
}

void exchange_in_pieces(const std::vector<Tensor>& tensors, const std::vector<int>& owners,
                        const comm::Group& group) {
  struct Message {
    const Piece* piece;
    Tensor flat;
    c10::intrusive_ptr<c10d::Work> work;
  };
  const std::vector<Piece> pieces = make_pieces(tensors, owners);
  const auto at_once = static_cast<size_t>(group.world_size());
  for (size_t begin = 0; begin < pieces.size(); begin += at_once) {
    std::vector<Message> messages;
    for (size_t i = begin; i < std::min(begin + at_once, pieces.size()); ++i) {
      std::vector<Tensor> parts;
      int64_t numel = 0;
      for (const Tensor& tensor : pieces[i].tensors) {
        parts.push_back(flat_view(tensor));
        numel += tensor.numel();
      }
      Tensor flat = pieces[i].owner == group.rank() ? at::cat(parts)
                                                    : at::empty({numel}, parts.front().options());
      auto work = broadcast(flat, pieces[i].owner, group);
      messages.push_back({&pieces[i], std::move(flat), std::move(work)});
    }
    for (const Message& message : messages) {
      group.wait(message.work, kWhat);
      if (message.piece->owner == group.rank()) continue;
      int64_t offset = 0;
      for (const Tensor& tensor : message.piece->tensors) {
        flat_view(tensor).copy_(message.flat.slice(0, offset, offset + tensor.numel()));
        offset += tensor.numel();
      }
    }
  }
}

// NCCL takes all sends in one launch, from where the parameters lie.
void exchange_in_one_group(const std::vector<Tensor>& tensors, const std::vector<int>& owners,
                           const comm::Group& group) {
  const auto device = tensors.front().device().type();
  group.guarded(kWhat, [&] { group.process_group().startCoalescing(device); });
  for (size_t i = 0; i < tensors.size(); ++i) broadcast(flat_view(tensors[i]), owners[i], group);
  const auto work =
      group.guarded(kWhat, [&] { return group.process_group().endCoalescing(device); });
  if (work) group.wait(work, kWhat);
}

}  // namespace

void exchange(const std::vector<Tensor>& tensors, const std::vector<int>& owners,
              const comm::Group& group) {
  if (group.world_size() == 1 || tensors.empty()) return;
  torch::NoGradGuard no_grad;
  for (const Tensor& tensor : tensors) {
    require(tensor.is_non_overlapping_and_dense(),
            "[ShardedOptimizer] expected parameters that are dense in memory, got strides ",
            tensor.strides(), " for shape ", tensor.sizes());
  }
  const bool all_cuda = std::all_of(tensors.begin(), tensors.end(),
                                    [](const Tensor& tensor) { return tensor.is_cuda(); });
  if (all_cuda) {
    exchange_in_one_group(tensors, owners, group);
  } else {
    exchange_in_pieces(tensors, owners, group);
  }
}

}  // namespace flashstep::parallel
