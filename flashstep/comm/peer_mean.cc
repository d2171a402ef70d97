#include "flashstep/comm/peer_mean.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "flashstep/comm/cuda/mean_of_ranks.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/comm/rounds_of_means.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr int64_t kMostSquareSums = 1024;  // rounds of a norm

std::optional<MeanElement> element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return MeanElement::kFloat32;
    case at::kDouble:
      return MeanElement::kFloat64;
    case at::kHalf:
      return MeanElement::kFloat16;
    case at::kBFloat16:
      return MeanElement::kBFloat16;
    default:
      return std::nullopt;
  }
}

// Bytes that lie together in memory, and their place in a round.
struct Piece {
  char* memory;
  size_t place, bytes;
  size_t tensor;  // its number
  at::ScalarType dtype;
};

// Whether this GPU has `bytes` beside the most that LibTorch's tensors have held so far.
bool has_room(at::Device device, size_t bytes) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto stats = allocator::getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t unused =
      stats.reserved_bytes.at(kAll).current - stats.allocated_bytes.at(kAll).peak;
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<double>(free) + static_cast<double>(unused) >=
         static_cast<double>(bytes) + kFreeBesideKeptMeans * static_cast<double>(total);
}

class CudaPeerMean : public PeerMean {
 public:
  CudaPeerMean(const Group& group, at::Device device, std::unique_ptr<PeerCopies> copies,
               at::Tensor space, at::Tensor square_sums, size_t share)
      : group_(group),
        rank_(group.rank()),
        world_size_(group.world_size()),
        device_(device),
        copies_(std::move(copies)),
        space_(std::move(space)),
        square_sums_(std::move(square_sums)),
        share_(share) {}

  bool takes(const std::vector<at::Tensor>& tensors) const override {
    const auto fits = [&](const at::Tensor& tensor) {
      return tensor.device() == device_ && element_of(tensor.scalar_type()) &&
             tensor.is_non_overlapping_and_dense();
    };
    return std::all_of(tensors.begin(), tensors.end(), fits) &&
           (!is_being_captured(device_) || (has_passed_barrier_ && copies_->can_be_captured()));
  }

  std::vector<at::Tensor> mean(const std::vector<at::Tensor>& tensors,
                               std::optional<size_t> kept_at) override {
    const c10::cuda::CUDAGuard guard(device_);
    // The space may have been others' before: what they still do with it comes first.
    if (!has_passed_barrier_) copies_->stream_barrier();
    has_passed_barrier_ = true;
    std::vector<at::Tensor> means = tensors;
    std::vector<size_t> bytes;
    for (const at::Tensor& tensor : tensors) {
      bytes.push_back(tensor.nbytes());
      measured_ += tensor.numel();
    }
    for (const RoundOfMeans& round : rounds_of_means(bytes, world_size_, share_))
      run(round, kept_at, means);
    return means;
  }

  void begin_norm() override {
    measured_ = 0;
    round_ = 0;
  }

  at::Tensor norm(int64_t numel) const override {
    if (measured_ != numel || round_ > kMostSquareSums) return {};
    const at::Tensor rows = square_sums_.narrow(0, 0, world_size_ * kMostSquareSums)
                                .view({world_size_, kMostSquareSums});
    return rows.narrow(1, 0, round_).sum().sqrt().to(at::kFloat);
  }

  bool keep(size_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    at::Tensor memory;
    try {
      if (has_room(device_, bytes))
        memory = at::empty({static_cast<int64_t>(bytes)}, space_.options());
    } catch (const c10::Error&) {  // perhaps here alone
    }
    if (group_.all_reduce(int64_t{memory.defined()}, Reduce::kMin) == 0) return false;
    if (!copies_->share({memory})) return false;
    kept_ = memory;
    return true;
  }

  bool is_kept(const at::Tensor& tensor) const override {
    if (!kept_.defined() || tensor.device() != device_) return false;
    const auto* const begin = static_cast<const char*>(kept_.const_data_ptr());
    const auto* const memory = static_cast<const char*>(tensor.const_data_ptr());
    return memory >= begin && memory < begin + kept_.nbytes();
  }

  size_t kept_bytes(const std::vector<size_t>& tensors) const override {
    size_t bytes = 0;
    for (const RoundOfMeans& round : rounds_of_means(tensors, world_size_, share_))
      bytes += round.most_received();
    return bytes;
  }

 private:
  // What of the round lies in rank `rank`'s part.
  static std::vector<Piece> pieces_of(const RoundOfMeans& round, int rank,
                                      const std::vector<at::Tensor>& tensors) {
    std::vector<Piece> result;
    for (const PieceOfRound& piece : round.pieces) {
      const size_t begin = std::max(piece.place, round.begin(rank));
      const size_t end = std::min(piece.place + piece.bytes, round.ends[rank]);
      if (begin >= end) continue;
      const at::Tensor& tensor = tensors[piece.tensor];
      result.push_back(
          {static_cast<char*>(tensor.mutable_data_ptr()) + piece.begin + (begin - piece.place),
           begin, end - begin, piece.tensor, tensor.scalar_type()});
    }
    return result;
  }

  // Meets twice, as often as a graph may. The space has a row for each other rank, what it sends to
  // be summed here, and once more, the means that it sends. A rank sends into the first when all
  // have met after the sums of the round before, into the second when they have met after the means
  // before were taken. Of means that stay, a place holds what of this tensor was sent, if anything,
  // which all have got when they meet.
  void run(const RoundOfMeans& round, std::optional<size_t>& kept_at,
           std::vector<at::Tensor>& tensors) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
    const size_t row = most_part(share_), number = kept_at ? kKept : kSpace;
    const size_t means = kept_at ? *kept_at : row * (world_size_ - 1);
    const auto place_of = [&](const Piece& piece, int from, int receiver) {
      return means + round.offset(from, receiver) + piece.place - round.begin(from);
    };
    copies_->push_to_all([&](int to) {
      for (const Piece& piece : pieces_of(round, to, tensors)) {
        copies_->push_bytes(to, kSpace,
                            row_of_rank(rank_, to) * row + piece.place - round.begin(to),
                            piece.memory, piece.bytes);
      }
    });
    copies_->stream_barrier();
    const std::vector<Piece> own = pieces_of(round, rank_, tensors);
    const bool measures = round_ < kMostSquareSums;
    const int64_t place = rank_ * kMostSquareSums + round_;
    double* const square_sum = measures ? square_sums_.mutable_data_ptr<double>() + place : nullptr;
    sum(own, round.begin(rank_), square_sum, stream);
    copies_->push_to_all([&](int to) {
      for (const Piece& piece : own)
        copies_->push_bytes(to, number, place_of(piece, rank_, to), piece.memory, piece.bytes);
      if (measures)
        copies_->push_bytes(to, kSquareSums, place * sizeof(double), square_sum, sizeof(double));
    });
    ++round_;
    copies_->stream_barrier();
    char* const arrived = static_cast<char*>((kept_at ? kept_ : space_).mutable_data_ptr());
    for (int from = 0; from < world_size_; ++from) {
      if (from == rank_) continue;
      for (const Piece& piece : pieces_of(round, from, tensors)) {
        char* const mean = arrived + place_of(piece, from, rank_);
        at::Tensor& tensor = tensors[piece.tensor];
        if (kept_at && piece.bytes == tensor.nbytes()) {
          tensor = at::from_blob(
              mean, tensor.sizes(), tensor.strides(), [memory = kept_](void*) {}, tensor.options(),
              device_);
          continue;
        }
        C10_CUDA_CHECK(
            cudaMemcpyAsync(piece.memory, mean, piece.bytes, cudaMemcpyDeviceToDevice, stream));
      }
    }
    if (kept_at) *kept_at += round.most_received();
  }

  void sum(const std::vector<Piece>& own, size_t first, double* square_sum,
           cudaStream_t stream) const {
    if (own.empty() && square_sum != nullptr)
      C10_CUDA_CHECK(cudaMemsetAsync(square_sum, 0, sizeof(double), stream));
    for (size_t begin = 0; begin < own.size();) {
      const at::ScalarType dtype = own[begin].dtype;
      MeanArguments arguments;
      arguments.received = static_cast<const char*>(space_.const_data_ptr());
      arguments.stride = most_part(share_);
      arguments.rank = rank_;
      arguments.world_size = world_size_;
      arguments.squares = {square_sum,
                           square_sums_.mutable_data_ptr<double>() + world_size_ * kMostSquareSums,
                           /*is_first=*/begin == 0};
      const auto element_size = static_cast<int64_t>(c10::elementSize(dtype));
      while (begin < own.size() && own[begin].dtype == dtype && arguments.count < kMostMeanPieces) {
        const Piece& piece = own[begin++];
        arguments.pieces[arguments.count++] = {piece.memory, piece.memory, piece.place - first,
                                               static_cast<int64_t>(piece.bytes) / element_size};
      }
      C10_CUDA_CHECK(launch_mean_of_ranks(arguments, *element_of(dtype), stream));
    }
  }

  static constexpr size_t kSpace = 0, kSquareSums = 1, kKept = 2;  // what copies_ shares

  const Group& group_;
  const int rank_, world_size_;
  const at::Device device_;
  std::unique_ptr<PeerCopies> copies_;
  const at::Tensor space_;  // bytes
  at::Tensor kept_;         // the same, for means that stay; undefined until keep()
  // float64: (W, kMostSquareSums), of each rank and round; behind them SquareSum's of_blocks
  const at::Tensor square_sums_;
  const size_t share_;  // bytes of a round that a rank sums up (rounds_of_means)
  bool has_passed_barrier_ = false;
  int64_t measured_ = 0;  // elements since begin_norm(),
  int64_t round_ = 0;     // in so many rounds
};

}  // namespace

std::unique_ptr<PeerMean> make_peer_mean(const Group& group, at::Device device, size_t bytes) {
  auto copies = make_peer_copies(group, device);
  if (!copies) return nullptr;
  const auto ranks = static_cast<size_t>(group.world_size());
  const size_t most = std::clamp(bytes, kLineBytes, ranks * kMostPeerMeanShare);
  const size_t share = in_lines((most + ranks - 1) / ranks), row = most_part(share);
  const at::TensorOptions options(device);
  at::Tensor space, square_sums;
  try {
    space = at::empty({static_cast<int64_t>(2 * (ranks - 1) * row)}, options.dtype(at::kByte));
    square_sums = at::empty({group.world_size() * kMostSquareSums +
                             mean_of_ranks_blocks(static_cast<int64_t>(row), kMostMeanPieces)},
                            options.dtype(at::kDouble));
  } catch (const c10::OutOfMemoryError&) {  // perhaps here alone
  }
  if (group.all_reduce(int64_t{square_sums.defined()}, Reduce::kMin) == 0) return nullptr;
  if (!copies->share({space, square_sums})) return nullptr;
  return std::make_unique<CudaPeerMean>(group, device, std::move(copies), space, square_sums,
                                        share);
}

void take_means(const std::vector<MeanOfReceived>& tensors, const at::Tensor& received, int rank) {
  const c10::cuda::CUDAGuard guard(received.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(received.device().index()).stream();
  const auto kind_of = [](const MeanOfReceived& t) {
    return std::pair(t.own.scalar_type(), t.mean.scalar_type());
  };
  for (size_t begin = 0; begin < tensors.size();) {
    const auto kind = kind_of(tensors[begin]);
    MeanArguments arguments;
    arguments.received = static_cast<const char*>(received.const_data_ptr());
    arguments.stride = static_cast<size_t>(received.stride(0));
    arguments.rank = rank;
    arguments.world_size = static_cast<int>(received.size(0)) + 1;
    while (begin < tensors.size() && kind_of(tensors[begin]) == kind &&
           arguments.count < kMostMeanPieces) {
      const MeanOfReceived& t = tensors[begin++];
      arguments.pieces[arguments.count++] = {t.own.const_data_ptr(), t.mean.mutable_data_ptr(),
                                             t.place, t.own.numel()};
    }
    const bool widens = kind.first != kind.second;
    C10_CUDA_CHECK(launch_mean_of_ranks(arguments, *element_of(kind.first), stream, widens));
  }
}

}  // namespace flashstep
