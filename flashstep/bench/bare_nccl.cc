#include <dlfcn.h>
#include <memory>
#include <nccl.h>
#include <string>

#include <c10/cuda/CUDAStream.h>

#include "flashstep/bench/bare_collectives.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

// The functions of the very library that LibTorch has loaded: linking another one in would compare
// two NCCLs.
template <typename Function>
Function* find(const char* name, Function*) {
  void* const address = dlsym(RTLD_DEFAULT, name);
  if (address == nullptr) throw MachineError(str("[nccl] LibTorch has loaded no ", name));
  return reinterpret_cast<Function*>(address);
}
#define FLASHSTEP_NCCL(function) find(#function, static_cast<decltype(&function)>(nullptr))

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw MachineError(str("[nccl] ", what, ": ", FLASHSTEP_NCCL(ncclGetErrorString)(result)));
}

ncclDataType_t nccl_type(at::ScalarType type) {
  if (type == at::kBFloat16) return ncclBfloat16;
  return type == at::kHalf ? ncclHalf : ncclFloat;
}

class BareNccl {
 public:
  BareNccl(const Group& group, at::Tensor tensor)
      : tensor_(std::move(tensor)), all_reduce_(FLASHSTEP_NCCL(ncclAllReduce)) {
    ncclUniqueId id;
    if (group.is_first()) check(FLASHSTEP_NCCL(ncclGetUniqueId)(&id), "ncclGetUniqueId");
    const std::string bytes = group.broadcast(std::string(id.internal, sizeof id.internal), 0);
    bytes.copy(id.internal, sizeof id.internal);
    check(FLASHSTEP_NCCL(ncclCommInitRank)(&communicator_, group.world_size(), id, group.rank()),
          "ncclCommInitRank");
  }
  ~BareNccl() { FLASHSTEP_NCCL(ncclCommDestroy)(communicator_); }
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  void run() {
    check(all_reduce_(tensor_.data_ptr(), tensor_.data_ptr(), static_cast<size_t>(tensor_.numel()),
                      nccl_type(tensor_.scalar_type()), ncclSum, communicator_,
                      c10::cuda::getCurrentCUDAStream()),
          "ncclAllReduce");
  }

 private:
  at::Tensor tensor_;
  ncclComm_t communicator_ = nullptr;
  decltype(&ncclAllReduce) all_reduce_;
};

}  // namespace

std::function<void()> make_bare_nccl(const Group& group, at::Tensor tensor) {
  const auto bare = std::make_shared<BareNccl>(group, std::move(tensor));
  return [bare] { bare->run(); };
}

}  // namespace flashstep::tools
