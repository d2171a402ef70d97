// Checkpoints that all ranks write together: each its share of the optimizer's state.
#pragma once

#include <filesystem>

#include "flashstep/checkpoint.h"
#include "flashstep/group.h"

namespace flashstep {

// save_checkpoint(), with checkpoint.optimizer each rank's own: rank 2 of 4 writes it into
// optimizer.00002-of-00004.safetensors, beside rank 0's model. A rank that does not see rank 0's
// directory (another machine's disk) hands its tensors to rank 0, who writes them into
// optimizer.others.safetensors. The checkpoint gets its name when every file is on the disk, so
// that it is whole or not there, whichever rank is killed when. All ranks call it; `checkpoints`,
// `keep`, and the rest of the checkpoint are rank 0's.
//
// Returns on all ranks when the checkpoint has its name. Whatever failed on whichever rank, all
// throw, and can go on: MachineError with its sentence, or on rank 0 what save_checkpoint throws.
// Only an exchange that breaks off half-way (a lost rank, memory that ends while receiving) is left
// to the group: who catches it calls group.fail(), as run() does.
void save_checkpoint_together(const std::filesystem::path& checkpoints,
                              const Checkpoint& checkpoint, int64_t keep, const Group& group);

}  // namespace flashstep
