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

}  // namespace

std::function<void()> make_bare_nccl(const Group& group, at::Tensor tensor) {
  ncclUniqueId id;
  if (group.is_first()) check(FLASHSTEP_NCCL(ncclGetUniqueId)(&id), "ncclGetUniqueId");
  const std::string bytes = group.broadcast(std::string(id.internal, sizeof id.internal), 0);
  bytes.copy(id.internal, sizeof id.internal);
  ncclComm_t made = nullptr;
  check(FLASHSTEP_NCCL(ncclCommInitRank)(&made, group.world_size(), id, group.rank()),
        "ncclCommInitRank");
  const std::shared_ptr<ncclComm> communicator(made, FLASHSTEP_NCCL(ncclCommDestroy));
  const auto all_reduce = FLASHSTEP_NCCL(ncclAllReduce);
  return [tensor, communicator, all_reduce] {
    check(all_reduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                     nccl_type(tensor.scalar_type()), ncclSum, communicator.get(),
                     c10::cuda::getCurrentCUDAStream()),
          "ncclAllReduce");
  };
}

}  // namespace flashstep::tools
