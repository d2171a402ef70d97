#include "flashstep/parallel/buckets.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

int64_t aligned(int64_t numel, int64_t element_bytes) {
  const int64_t multiple = std::max<int64_t>(1, kSlotAlignmentBytes / element_bytes);
  return (numel + multiple - 1) / multiple * multiple;
}

double bytes_of(const at::Tensor& parameter, at::ScalarType dtype) {
  return static_cast<double>(parameter.numel()) * static_cast<double>(c10::elementSize(dtype));
}

// The places in `order` after which one of the last, smaller buckets begins.
std::set<size_t> ends_before_last(const std::vector<at::Tensor>& parameters,
                                  const std::vector<at::ScalarType>& dtypes,
                                  const std::vector<int64_t>& order, double bucket_bytes,
                                  double last_bytes) {
  std::set<size_t> ends;
  double bytes = 0, most = last_bytes;
  for (size_t place = order.size(); place-- > 1 && most < bucket_bytes;) {
    bytes += bytes_of(parameters[order[place]], dtypes[order[place]]);
    if (bytes < most) continue;
    ends.insert(place - 1);
    bytes = 0;
    most *= 2;
  }
  return ends;
}

}  // namespace

std::vector<int64_t> reversed_order(size_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

at::ScalarType gradient_dtype(const at::Tensor& parameter) {
  return parameter.grad_dtype().value_or(parameter.scalar_type());  // none: any may come
}

std::vector<at::ScalarType> gradient_dtypes(const std::vector<at::Tensor>& parameters) {
  std::vector<at::ScalarType> dtypes;
  dtypes.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) dtypes.push_back(gradient_dtype(parameter));
  return dtypes;
}

double gradient_bytes(const std::vector<at::Tensor>& parameters) {
  double bytes = 0;
  for (const at::Tensor& parameter : parameters)
    bytes += bytes_of(parameter, gradient_dtype(parameter));
  return bytes;
}

std::vector<BucketLayout> plan_buckets(const std::vector<at::Tensor>& parameters,
                                       const std::vector<at::ScalarType>& dtypes,
                                       const std::vector<int64_t>& order, double bucket_bytes,
                                       double last_bytes) {
  const std::set<size_t> ends =
      ends_before_last(parameters, dtypes, order, bucket_bytes, last_bytes);
  struct Open {
    BucketLayout layout;
    double bytes = 0;
    size_t last = 0;  // where the last parameter stands in `order`
  };
  std::map<std::string, Open> open;  // by device and dtypes
  std::vector<std::pair<size_t, BucketLayout>> closed;
  for (size_t place = 0; place < order.size(); ++place) {
    const at::Tensor& parameter = parameters[order[place]];
    const at::ScalarType dtype = dtypes[order[place]];
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    const std::string kind = flashstep::str(
        parameter.device(), ' ', c10::toString(parameter.scalar_type()), ' ', c10::toString(dtype));
    Open& bucket = open[kind];
    bucket.layout.dtype = dtype;
    bucket.layout.parameters.push_back(order[place]);
    bucket.layout.offsets.push_back(bucket.layout.numel);
    bucket.layout.numel += aligned(parameter.numel(), element_bytes);
    bucket.bytes += bytes_of(parameter, dtype);
    bucket.last = place;
    if (bucket.bytes >= bucket_bytes || ends.contains(place)) {
      closed.emplace_back(place, std::move(bucket.layout));
      open.erase(kind);
    }
  }
  for (auto& [kind, bucket] : open) closed.emplace_back(bucket.last, std::move(bucket.layout));
  std::sort(closed.begin(), closed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<BucketLayout> layouts;
  for (auto& [last, layout] : closed) layouts.push_back(std::move(layout));
  return layouts;
}

std::vector<int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<int64_t> strides(parameter.dim());
  int64_t stride = 1;
  for (int64_t axis = parameter.dim() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= std::max<int64_t>(parameter.size(axis), 1);
  }
  return strides;
}

at::Tensor flat_view(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

at::Tensor whole_memory(const at::Tensor& tensor, int64_t numel) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.as_strided({numel}, {1}, 0);
}

at::Tensor slot_view(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return flat.as_strided(parameter.sizes(), gradient_strides(parameter),
                         flat.storage_offset() + offset);
}

void note_written(const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace flashstep
