#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/backends.h"
#include "flashstep/comm/cores.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/group.h"

namespace flashstep {
namespace {

std::string describe(const Environment& environment, const GroupOptions& options) {
  const std::string place = options.device_index < 0 ? "cpu" : str("cuda:", options.device_index);
  if (environment.world_size == 1) return "1 process on " + place;
  const std::string ranks =
      str(environment.world_size, " ranks by ", environment.launcher, ", rank 0 on ", place);
  if (options.nccl) return ranks + ", NCCL";
  return ranks +
         (options.device_index < 0 ? ", Gloo" : ", Gloo through the host: built without NCCL");
}

}  // namespace

void share_cores(const Environment& environment) {
  if (environment.local_world_size == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(std::max(1, at::get_num_threads() / environment.local_world_size));
}

Group init(GroupOptions options) {
  const Environment environment = read_environment();
  share_cores(environment);
  const int gpus = visible_gpus();
  options.device_index = gpus > 0 ? gpu_of_rank(gpus, environment) : -1;
  options.nccl = gpus > 0 && environment.world_size > 1 && has_nccl();
  if (!options.on_stuck) options.on_stuck = end_process;
  if (gpus > 0) {
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(
        {at::kCUDA, static_cast<at::DeviceIndex>(options.device_index)});
  }
  if (environment.rank == 0)
    std::fprintf(stderr, "[flashstep] %s\n", describe(environment, options).c_str());
  return Group(environment, std::move(options));
}

}  // namespace flashstep
