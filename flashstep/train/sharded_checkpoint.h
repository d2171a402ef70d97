// Checkpoints that all ranks write together: each its share of the optimizer's state.
#pragma once

#include <filesystem>

#include "flashstep/comm/group.h"
#include "flashstep/train/checkpoint.h"

namespace flashstep::train {

// save_checkpoint(), with checkpoint.optimizer each rank's own: rank 2 of 4 writes it into
// optimizer.00002-of-00004.safetensors, beside rank 0's model. A rank that does not see rank 0's
// directory (another machine's disk) hands its tensors to rank 0, who writes them. The checkpoint
// gets its name when every file is on the disk, so that it is whole or not there, whichever rank is
// killed when. All ranks call it; `checkpoints`, `keep`, and the rest of the checkpoint are rank
// 0's. MachineError, on all ranks, if one cannot write.
void save_checkpoint_together(const std::filesystem::path& checkpoints,
                              const Checkpoint& checkpoint, int64_t keep, const comm::Group& group);

}  // namespace flashstep::train
