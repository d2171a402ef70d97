// Without CUDA there is no NCCL.
#include "flashstep/bench/bare_collectives.h"
#include "flashstep/error.h"

namespace flashstep::tools {

std::function<void()> make_bare_nccl(const Group&, at::Tensor) {
  throw MachineError("[nccl] this build has no CUDA");
}

}  // namespace flashstep::tools
