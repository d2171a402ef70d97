// Without CUDA there is no NCCL.
#include "flashstep/base/error.h"
#include "flashstep/comm/backends.h"

namespace flashstep::comm {

Nccl make_nccl(const c10::intrusive_ptr<c10d::Store>&, const Environment&, int,
               std::chrono::milliseconds) {
  throw UserError("[comm] expected a program with CUDA for NCCL, got one built without");
}

}  // namespace flashstep::comm
