// How a program joins the ranks that it was started as.
#pragma once

#include "flashstep/comm/group.h"

namespace flashstep {

// The group of this process and those that were started with it, by torchrun, mpirun, srun or
// `flashstep launch`; of itself alone, if nobody says more (comm/environment.h).
//
// Where there is a GPU, this rank's is group.device() and the current device from now on, and CUDA
// tensors go through NCCL, if it was built in; everything else goes through Gloo. The cores of a
// machine are shared among its ranks (unless OMP_NUM_THREADS says how many each has), a lost rank
// ends a process that is caught in a collective (GroupOptions::on_stuck), and rank 0 says in a line
// on stderr what there is. `options`: nccl and device_index are chosen here.
//
// Throws what Group's constructor throws, on every rank: UserError for an environment that
// contradicts itself or ranks that share a GPU, MachineError for ranks that do not come.
Group init(GroupOptions options = {});

}  // namespace flashstep
