#include "flashstep/comm/gpus.h"

#include <algorithm>
#include <map>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"

namespace flashstep {

int visible_gpus() {
  return at::hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0;
}

int gpu_of_rank(int visible, int local_rank) {
  require(visible > 0, "[comm] expected a GPU for local rank ", local_rank,
          ", got none; see to CUDA_VISIBLE_DEVICES, or train on the CPU");
  return local_rank % visible;
}

void check_gpus(const std::vector<std::string>& gpus, const std::vector<std::string>& names) {
  const auto without = std::find(gpus.begin(), gpus.end(), "") - gpus.begin();
  const auto with =
      std::find_if(gpus.begin(), gpus.end(), [](const auto& gpu) { return !gpu.empty(); }) -
      gpus.begin();
  const auto count = static_cast<std::ptrdiff_t>(gpus.size());
  if (with == count) return;
  if (without < count) {
    throw AgreedError(str("[comm] expected a GPU for every rank, or for none, got ", gpus[with],
                          " on ", names[with], " and none on ", names[without],
                          "; let every rank see a GPU, or train on the CPU everywhere"));
  }
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto [owner, is_first] = owners.emplace(gpus[rank], rank);
    if (is_first) continue;
    throw AgreedError(str("[comm] expected a GPU of its own for each rank, got ", gpus[rank],
                          " for both ", names[owner->second], " and ", names[rank],
                          "; start no more ranks on a machine than it has GPUs, let each see its "
                          "own (CUDA_VISIBLE_DEVICES), or train on the CPU"));
  }
}

}  // namespace flashstep
