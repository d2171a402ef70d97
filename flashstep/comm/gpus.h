// Which GPU each rank has.
#pragma once

#include <string>
#include <vector>

#include "flashstep/detail/environment.h"

namespace flashstep {

// GPUs that this process sees; 0 for a program without CUDA.
int visible_gpus();

// The GPU for a rank that sees `visible` of them. Each has its own where all ranks of a machine see
// the same GPUs, where each sees others (Slurm's --gpus-per-task, a container a rank), and where
// neighbours share some: local ranks in a row differ modulo `visible`, as long as there are no more
// of them than GPUs. Whether it is so, check_gpus() finds. UserError without any.
int gpu_of_rank(int visible, int local_rank);
inline int gpu_of_rank(int visible, const Environment& environment) {
  return gpu_of_rank(visible, environment.local_rank);
}

// `gpus` are all ranks', in their order: "GPU-5d3f...", or empty for a rank that uses none. They
// must be different ones, or none at all. AgreedError, with the ranks called by `names` ("rank 2
// (process 4711 on node7)"): NCCL would say "invalid usage" of the former, in the first collective,
// and wait for ever with the latter.
void check_gpus(const std::vector<std::string>& gpus, const std::vector<std::string>& names);

}  // namespace flashstep
