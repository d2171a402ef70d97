// Tensors by name, as ranks hand them to each other and as files hold them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flashstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace flashstep
