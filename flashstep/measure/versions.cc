#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#include "flashstep/measure/machine.h"

namespace flashstep::measure {

std::string libtorch_version() { return TORCH_VERSION; }
int libtorch_threads() { return at::get_num_threads(); }

}  // namespace flashstep::measure
