// Small values through a Group: numbers and texts on the CPU.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {
namespace {

template <typename T>
at::Tensor as_tensor(const std::vector<T>& values) {  // (values.size())
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(values.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), tensor.data_ptr<T>());
  return tensor;
}

// Every rank's `own` (K), one below the other: (world size, K).
at::Tensor gather(const Group& group, at::Tensor own, const char* what) {
  const int64_t length = own.numel();
  at::Tensor all = at::empty({group.world_size() * length}, own.options());
  if (length == 0) return all.view({group.world_size(), 0});
  const auto work =
      group.guarded(what, [&] { return group.process_group()._allgather_base(all, own); });
  group.wait(work, what);
  return all.view({group.world_size(), length});
}

template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <typename T>
T reduce_column(const T* first, int64_t stride, int count, Reduce reduce) {
  T result = first[0];
  for (int rank = 1; rank < count; ++rank) {
    const T value = first[rank * stride];
    if (is_nan(value)) {  // of which no comparison knows
      result = value;
    } else if (reduce == Reduce::kMin) {
      result = std::min(result, value);  // or the NaN that it is
    } else if (reduce == Reduce::kMax) {
      result = std::max(result, value);
    } else {
      result += value;
    }
  }
  return reduce == Reduce::kMean ? result / count : result;
}

template <typename T>
std::vector<T> reduce_all(const Group& group, const std::vector<T>& values, Reduce reduce) {
  const at::Tensor all = gather(group, as_tensor(values), "all-reduce of values");
  std::vector<T> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    result[i] = reduce_column(all.data_ptr<T>() + i, static_cast<int64_t>(values.size()),
                              group.world_size(), reduce);
  }
  return result;
}

template <typename T>
std::vector<T> gather_all(const Group& group, T value) {
  const at::Tensor all = gather(group, as_tensor(std::vector<T>{value}), "all-gather of values");
  return {all.data_ptr<T>(), all.data_ptr<T>() + all.numel()};
}

at::Tensor bytes_of(const std::string& text, int64_t length) {  // (length) uint8, zeros behind
  at::Tensor bytes = at::zeros({length}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

}  // namespace

void Group::barrier(const std::string& what, std::chrono::milliseconds timeout) const {
  c10d::BarrierOptions options;
  options.device = at::Device(at::kCPU);
  if (timeout.count() > 0) options.timeout = timeout;
  const auto backend = guarded(what, [&] { return process_group_->getBackend(at::kCPU); });
  wait(guarded(what, [&] { return backend->barrier(options); }), what);
}

std::vector<double> Group::all_reduce(const std::vector<double>& values, Reduce reduce) const {
  return reduce_all(*this, values, reduce);
}

std::vector<int64_t> Group::all_reduce(const std::vector<int64_t>& values, Reduce reduce) const {
  return reduce_all(*this, values, reduce);
}

std::vector<double> Group::all_gather(double value) const { return gather_all(*this, value); }

std::vector<int64_t> Group::all_gather(int64_t value) const { return gather_all(*this, value); }

std::vector<std::string> Group::all_gather(const std::string& text) const {
  const std::vector<int64_t> lengths = all_gather(static_cast<int64_t>(text.size()));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor all = gather(*this, bytes_of(text, longest), "all-gather of text");
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto* first = reinterpret_cast<const char*>(all.data_ptr<uint8_t>()) + rank * longest;
    texts.emplace_back(first, static_cast<size_t>(lengths[rank]));
  }
  return texts;
}

void Group::broadcast(at::Tensor tensor, int from) const {
  c10d::BroadcastOptions options;
  options.rootRank = from;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  const char* const what = "broadcast";
  wait(guarded(what, [&] { return process_group_->broadcast(tensors, options); }), what);
  // c10d writes past autograd: who saved the tensor, or keeps what was computed from it, shall see.
  if (rank_ != from && !tensors.front().is_inference())
    tensors.front().unsafeGetTensorImpl()->bump_version();
}

std::string Group::broadcast(const std::string& text, int from) const {
  const bool source = rank_ == from;
  at::Tensor length = as_tensor(std::vector<int64_t>{static_cast<int64_t>(text.size())});
  broadcast(length, from);
  const int64_t size = length.data_ptr<int64_t>()[0];
  if (size == 0) return "";
  at::Tensor bytes = source ? bytes_of(text, size) : at::empty({size}, at::kByte);
  broadcast(bytes, from);
  return {reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()), static_cast<size_t>(size)};
}

}  // namespace flashstep
