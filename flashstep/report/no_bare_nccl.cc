// Without CUDA there is no NCCL.
#include "flashstep/error.h"
#include "flashstep/report/bare_collectives.h"

namespace flashstep::report {

std::unique_ptr<BareAllreduce> make_bare_nccl(const Group&, at::Tensor) {
  throw MachineError("[nccl] this build has no CUDA");
}

}  // namespace flashstep::report
