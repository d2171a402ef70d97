#include "flashstep/parallel/flat_shards.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "flashstep/error.h"
#include "flashstep/parallel/divided_gradient.h"

namespace flashstep {
namespace {

using at::Tensor;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::vector<Tensor> tensors_of(const std::vector<GroupedParameter>& parameters) {
  std::vector<Tensor> tensors;
  tensors.reserve(parameters.size());
  for (const GroupedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

// Two parameters that look into the same memory would be parted by moving them.
void check_movable(const std::vector<GroupedParameter>& parameters) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const auto& [tensor, group] : parameters) {
    require(tensor.is_non_overlapping_and_dense(),
            "[ShardedOptimizer] expected parameters that are dense in memory, got strides ",
            tensor.strides(), " for shape ", tensor.sizes());
    require(!tensor.is_complex(),
            "[ShardedOptimizer] expected real parameters for flat shards, got ", "one of ",
            tensor.scalar_type(), " and shape ", tensor.sizes());
    if (tensor.numel() == 0) continue;
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    ranges.emplace_back(begin, begin + tensor.nbytes());
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    require(ranges[i].first >= ranges[i - 1].second,
            "[ShardedOptimizer] expected parameters in memory of their own for flat shards, got "
            "two different tensors over the same memory (tie weights by using one tensor twice)");
  }
}

// Elements [begin, end) of a flat tensor as a tensor of its own over the same memory, which an
// optimizer takes for a parameter.
Tensor as_parameter(const Tensor& flat, int64_t begin, int64_t end, at::ScalarType of_gradient) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensor piece = flat.as_strided({end - begin}, {1}, flat.storage_offset() + begin);
  piece.set_requires_grad(true);
  if (of_gradient != piece.scalar_type()) piece.set_grad_dtype(of_gradient);
  return piece;
}

}  // namespace

std::vector<BucketLayout> plan_flat(const std::vector<Tensor>& parameters,
                                    const std::vector<at::ScalarType>& dtypes,
                                    const std::vector<int64_t>& order, double bucket_bytes,
                                    int world_size) {
  std::vector<BucketLayout> layouts = plan_buckets(parameters, dtypes, order, bucket_bytes);
  for (BucketLayout& layout : layouts) {
    const int64_t element_bytes = std::min(parameters[layout.parameters.front()].element_size(),
                                           static_cast<int64_t>(c10::elementSize(layout.dtype)));
    const int64_t multiple = std::max<int64_t>(1, kPartAlignmentBytes / element_bytes);
    layout.numel = 0;
    for (size_t slot = 0; slot < layout.parameters.size(); ++slot) {
      layout.offsets[slot] = layout.numel;
      layout.numel += round_up(parameters[layout.parameters[slot]].numel(), multiple);
    }
    layout.numel = round_up(std::max<int64_t>(layout.numel, 1), multiple * world_size);
  }
  return layouts;
}

FlatShards::FlatShards(const Group& group, double bucket_bytes, double part_bytes,
                       GradientReducer* reducer, bool peer_copies)
    : group_(group),
      bucket_bytes_(bucket_bytes),
      part_bytes_(part_bytes),
      reducer_(reducer),
      exchange_(group, peer_copies),
      loads_(group.world_size(), 0) {}

FlatShards::~FlatShards() {
  if (!scatter_) return;
  drop_gradients();
  try {
    reducer_->scatter_to(nullptr);
  } catch (const UserError&) {
    // Gone in the middle of a step: the reducer goes on dividing gradients.
  }
}

std::vector<OwnPiece> FlatShards::divide(const std::vector<GroupedParameter>& parameters) {
  std::vector<GroupedParameter> trainable;
  for (const GroupedParameter& parameter : parameters) {
    if (parameter.tensor.requires_grad()) trainable.push_back(parameter);
  }
  check_movable(trainable);
  std::vector<OwnPiece> own;
  if (reducer_ != nullptr && !scatter_) add_reduced(trainable, own);
  std::erase_if(trainable, [&](const GroupedParameter& parameter) {
    return places_.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  // Their gradients are sent by others, or not at all.
  const std::vector<Tensor> tensors = tensors_of(trainable);
  std::vector<at::ScalarType> dtypes;
  for (const Tensor& tensor : tensors) dtypes.push_back(tensor.scalar_type());
  const auto layouts = plan_flat(tensors, dtypes, reversed_order(tensors.size()), bucket_bytes_,
                                 group_.world_size());
  for (const BucketLayout& layout : layouts) add_flat(layout, trainable, -1, own);
  return own;
}

// Those that the reducer reduces, in the reducer's order: its buckets are the shards.
void FlatShards::add_reduced(const std::vector<GroupedParameter>& parameters,
                             std::vector<OwnPiece>& own) {
  const std::vector<Tensor>& reduced = reducer_->reduced_parameters();
  std::vector<GroupedParameter> ordered;
  for (const Tensor& tensor : reduced) {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& other) {
      return other.tensor.is_same(tensor);
    });
    require(found != parameters.end(), "[ShardedOptimizer] expected all ", reduced.size(),
            " parameters of the reducer in the optimizer, for a gradient that is divided is "
            "nowhere whole; give no reducer to divide only some of them");
    ordered.push_back(*found);
  }
  auto scatter = std::make_shared<GradientScatter>(
      plan_flat(reduced, reducer_->gradient_dtypes(), reversed_order(reduced.size()), bucket_bytes_,
                group_.world_size()),
      group_);
  if (!reducer_->scatter_to(scatter)) {
    reducer_ = nullptr;  // it averages, and every rank takes its parts of the means
    return;
  }
  scatter_ = std::move(scatter);
  for (size_t bucket = 0; bucket < scatter_->layouts().size(); ++bucket) {
    add_flat(scatter_->layouts()[bucket], ordered, static_cast<int64_t>(bucket), own);
  }
}

void FlatShards::add_flat(const BucketLayout& layout,
                          const std::vector<GroupedParameter>& parameters, int64_t scatter_bucket,
                          std::vector<OwnPiece>& own) {
  at::NoGradGuard no_grad;
  const Tensor& first = parameters[layout.parameters.front()].tensor;
  const Tensor flat = at::zeros({layout.numel}, first.options().requires_grad(false));
  if (parts_.empty() || open_bytes_ >= part_bytes_) {
    parts_.emplace_back();
    open_bytes_ = 0;
  }
  parts_.back().push_back(flat);
  const int64_t part_numel = layout.numel / group_.world_size();
  open_bytes_ += static_cast<double>(part_numel * flat.element_size());
  for (size_t slot = 0; slot < layout.parameters.size(); ++slot) {
    const auto& [tensor, group] = parameters[layout.parameters[slot]];
    const int64_t offset = layout.offsets[slot], numel = tensor.numel();
    const Tensor place = slot_view(flat, offset, tensor);
    place.copy_(tensor);
    tensor.set_data(place);
    const Place& where =
        places_[tensor.unsafeGetTensorImpl()] = {tensor, flat, offset, scatter_bucket, slot};
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      const int64_t begin = std::max(rank * part_numel - offset, int64_t{0});
      const int64_t end = std::min((rank + 1) * part_numel - offset, numel);
      const bool is_here = begin < end || (numel == 0 && first_owner(where) == rank);
      if (!is_here) continue;
      loads_[rank] += end - begin;
      if (rank != group_.rank()) continue;
      own.push_back({tensor, begin, end,
                     as_parameter(flat, offset + begin, offset + end, gradient_dtype(tensor)),
                     group, parts_.size() - 1});
    }
  }
}

int FlatShards::owner(const Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found == places_.end()) return -1;
  return first_owner(found->second);
}

// An empty parameter may stand behind the last element of its flat tensor.
int FlatShards::first_owner(const Place& place) const {
  const int64_t part_numel = place.flat.numel() / group_.world_size();
  return static_cast<int>(std::min<int64_t>(place.offset / part_numel, group_.world_size() - 1));
}

// Loading into a tensor can give it other memory, and then the flat one, which is updated and sent,
// is nobody's parameter any more.
void FlatShards::check_memory() const {
  for (const auto& [identity, place] : places_) {
    require(
        place.parameter.storage().is_alias_of(place.flat.storage()) &&
            place.parameter.storage_offset() == place.flat.storage_offset() + place.offset,
        "[ShardedOptimizer] expected the parameter of shape ", place.parameter.sizes(),
        " in the flat memory that it was moved to, got it in memory of its own: load (torch::load "
        "gives parameters new memory) or move the module before this optimizer is made, or copy "
        "into its parameters");
  }
}

Tensor FlatShards::gradient_of(const OwnPiece& piece) const {
  const Place& place = places_.at(piece.parameter.unsafeGetTensorImpl());
  if (place.bucket >= 0)
    return scatter_->gradient(place.bucket, place.slot, piece.begin, piece.end);
  Tensor& gradient = piece.parameter.mutable_grad();
  if (!gradient.defined()) return {};
  require(gradient.layout() == at::kStrided,
          "[ShardedOptimizer] expected dense gradients, got a "
          "sparse one for the parameter of shape ",
          piece.parameter.sizes());
  const std::vector<int64_t> strides = gradient_strides(piece.parameter);
  if (gradient.strides() != strides) {
    gradient = at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
  }
  return flat_view(gradient).slice(0, piece.begin, piece.end);
}

void FlatShards::bring_gradients(const std::vector<OwnPiece>& own) {
  at::NoGradGuard no_grad;
  exchange_.begin();
  check_memory();
  for (const OwnPiece& piece : own) piece.inner.mutable_grad() = gradient_of(piece);
  // Pieces, and what arrives, are written past the parameters, whose versions they do not share.
  for (auto& [identity, place] : places_) note_written(place.parameter);
}

std::vector<Tensor> FlatShards::gradients(const std::vector<OwnPiece>& own) {
  at::NoGradGuard no_grad;
  check_memory();
  std::vector<Tensor> gradients;
  for (const OwnPiece& piece : own) {
    if (Tensor gradient = gradient_of(piece); gradient.defined()) gradients.push_back(gradient);
  }
  return gradients;
}

void FlatShards::drop_gradients() {
  if (!scatter_) return;
  scatter_->clear();
  for (auto& [identity, place] : places_) {
    Tensor& gradient = place.parameter.mutable_grad();
    if (is_divided_gradient(gradient)) gradient.reset();
  }
}

void FlatShards::finish() {
  exchange_.finish();
  drop_gradients();
}

}  // namespace flashstep
