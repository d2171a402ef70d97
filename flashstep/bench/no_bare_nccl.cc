// Without CUDA there is no NCCL.
#include "flashstep/bench/bare_collectives.h"
#include "flashstep/error.h"

namespace flashstep::tools {

std::unique_ptr<BareAllreduce> make_bare_nccl(const Group&, at::Tensor) {
  throw MachineError("[nccl] this build has no CUDA");
}

}  // namespace flashstep::tools
