#include "flashstep/parallel/stored_tensors.h"

#include <utility>

#include <ATen/ATen.h>

#include "flashstep/parallel/buckets.h"

namespace flashstep {

using at::Tensor;

StoredTensor StoredTensor::to(at::ScalarType dtype) const {
  return {name, form.to(dtype),
          [read = read, dtype](int64_t begin, int64_t end) { return read(begin, end).to(dtype); }};
}

StoredTensor in_memory(const std::string& name, const Tensor& tensor) {
  const Tensor kept = tensor.detach();
  return {name, at::empty(kept.sizes(), kept.options().device(at::kMeta)),
          [kept](int64_t begin, int64_t end) {
            return kept.reshape({-1}).slice(0, begin, end).clone();
          }};
}

StoredTensors in_memory(NamedTensors tensors) {
  StoredTensors result;
  for (auto& [name, tensor] : tensors)  // the caller's argument goes last: it keeps none
    result.push_back(in_memory(name, std::exchange(tensor, {})));
  return result;
}

Tensor part_of(const StoredTensor& stored, const Tensor& parameter, int64_t begin, int64_t end) {
  if (parameter.is_contiguous()) return stored.read(begin, end);
  const Tensor whole = stored.whole();
  const Tensor ordered =
      at::empty_strided(whole.sizes(), gradient_strides(parameter), whole.options()).copy_(whole);
  return flat_view(ordered).slice(0, begin, end).clone();
}

}  // namespace flashstep
