// Tensors that are read in part from where they are stored: a file, another rank, memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/detail/named_tensors.h"

namespace flashstep {

struct StoredTensor {
  std::string name;
  at::Tensor form;  // of its shape and dtype, on the meta device
  // Elements [begin, end), row by row: (end - begin), memory of their own.
  std::function<at::Tensor(int64_t begin, int64_t end)> read;

  at::Tensor whole() const { return read(0, form.numel()).view(form.sizes()); }
  StoredTensor to(at::ScalarType dtype) const;
};
using StoredTensors = std::vector<StoredTensor>;

StoredTensor in_memory(const std::string& name, const at::Tensor& tensor);
StoredTensors in_memory(NamedTensors tensors);

// Elements [begin, end) of `stored`, which has the shape of `parameter`, in the order of the
// parameter's memory. Reads these alone if that goes row by row, as files do, else all.
at::Tensor part_of(const StoredTensor& stored, const at::Tensor& parameter, int64_t begin,
                   int64_t end);

}  // namespace flashstep
