// Lists of tensors by device and dtype.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/base/text.h"

namespace flashstep::internal {

inline std::string kind_of(const at::Tensor& tensor) {
  return flashstep::str(tensor.device(), ' ', c10::toString(tensor.scalar_type()));
}

// PyTorch's foreach kernels take tensors of one kind. Ordered, so that runs launch alike.
inline std::map<std::string, std::vector<at::Tensor>> by_kind(
    const std::vector<at::Tensor>& tensors) {
  std::map<std::string, std::vector<at::Tensor>> kinds;
  for (const at::Tensor& tensor : tensors) kinds[kind_of(tensor)].push_back(tensor);
  return kinds;
}

}  // namespace flashstep::internal
