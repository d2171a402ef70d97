// Checkpoints: what a run needs to go on as if it had never stopped, written whole or not at all.
//
// A checkpoint is a directory, RUN/checkpoints/step_00000100/, with
//   model.safetensors, optimizer.safetensors   tensors by name
//   state.json                                 step, the other files' hashes, the trainer's state
// (ranks that divide the optimizer's state write it into files of their own, each a share:
// optimizer.00002-of-00004.safetensors, sharded_checkpoint.h).
// It is written under a temporary name, its files and itself fsynced, and renamed: a checkpoint
// that has its name is complete, whenever the process was killed or the power failed. On reading,
// every file is held against its hash; a damaged checkpoint is named, the one before it used.
//
// One process at a time may write into a `checkpoints` directory (the run's lock sees to that); any
// number may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/train/checkpoint_state.h"
#include "flashstep/train/safetensors.h"

namespace flashstep {

struct Checkpoint {
  int64_t step = 0;        // optimizer updates done
  NamedTensors model;      // parameters and buffers
  NamedTensors optimizer;  // the optimizer's tensors
  // A JSON object, the trainer's own: config, schedule, random generators, data position.
  std::string state_json = "{}";
};

// To be called once when a run starts, before anything else here: removes what a killed process
// left behind (and finishes a replacement that it had begun). Creates the directory if there is
// none.
void prepare_checkpoints(const std::filesystem::path& checkpoints);

// Writes the optimizer's tensors into files of its own in `directory`, and returns their records.
using WriteOptimizer = std::function<std::vector<CheckpointFile>(const std::filesystem::path&)>;

// Writes `checkpoint` and removes all but the newest `keep` (0 keeps all). Checkpoints of later
// steps, which can only be damaged or belong to a future that was given up, are removed too. Write
// everything else about the step (MetricsLog::sync) before: what is done after the checkpoint may
// be lost. Throws MachineError when the machine fails: the checkpoints that were there are still
// there then, and nothing half-written is. Returns the checkpoint's directory. `write_optimizer`,
// if not empty, is called instead of writing checkpoint.optimizer, when the model is written.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const Checkpoint& checkpoint, int64_t keep,
                                      const WriteOptimizer& write_optimizer = {});

// The steps that have a checkpoint, ascending; empty if the directory is missing.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& checkpoints);

// The directory of one step's checkpoint.
std::filesystem::path checkpoint_directory(const std::filesystem::path& checkpoints, int64_t step);

using WarnFunction = std::function<void(const std::string& sentence)>;

// The newest checkpoint that is whole; `warn` gets a sentence for each damaged one on the way.
// Nothing if there is no checkpoint at all; UserError if there are some and all are damaged, for
// starting anew would overwrite what may yet be rescued.
std::optional<Checkpoint> load_newest(const std::filesystem::path& checkpoints,
                                      const WarnFunction& warn);

// The checkpoint in `directory` (.../step_00000100). UserError if it is damaged, naming the file.
// All tensors are on the CPU.
Checkpoint load_checkpoint(const std::filesystem::path& directory);

// To be called when a run goes on from `step`, before it writes anything: checkpoints of later
// steps are set aside (renamed to *.discarded, removed by the next save), so that a second resume
// cannot pick one of them while the metrics have forgotten its steps.
void discard_after(const std::filesystem::path& checkpoints, int64_t step);

// Weights alone, to start another run from: `path` is a .safetensors file, a checkpoint, a
// directory of checkpoints or a run.
NamedTensors load_weights(const std::filesystem::path& path, const WarnFunction& warn);

}  // namespace flashstep
