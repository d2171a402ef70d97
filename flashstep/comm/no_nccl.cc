// Without CUDA there is no NCCL.
#include "flashstep/comm/backends.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

[[noreturn]] void refuse() {
  throw UserError("[comm] expected a program with CUDA for NCCL, got one built without");
}

}  // namespace

bool has_nccl() { return false; }

std::string own_gpu(const Environment&, int) { refuse(); }

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                            std::chrono::milliseconds) {
  refuse();
}

}  // namespace flashstep
