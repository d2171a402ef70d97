// Checkpoints of a training loop of one's own: everything that it needs to go on as if it had never
// stopped, written whole or not at all, in the form that flashstep train writes and reads.
//
//   const int64_t begin = flashstep::load_if_exists("run/checkpoints", net, optimizer);
//   for (int64_t step = begin; step < steps; ++step) {
//     ...
//     if ((step + 1) % 1000 == 0) flashstep::save("run/checkpoints", net, optimizer, step + 1);
//   }
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "flashstep/data_parallel.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/named_tensors.h"
#include "flashstep/detail/safetensors_format.h"
#include "flashstep/fully_sharded.h"

namespace flashstep {

class GradientScaler;

// A module, a shared pointer to one, a holder of one, or one that is wrapped.
class ModelRef {
 public:
  ModelRef(torch::nn::Module& module) : module_(module) {}  // NOLINT(google-explicit-constructor)
  template <typename M>
  ModelRef(const std::shared_ptr<M>& module)  // NOLINT(google-explicit-constructor)
      : ModelRef(*module) {}
  template <typename M>
  ModelRef(const torch::nn::ModuleHolder<M>& holder)  // NOLINT(google-explicit-constructor)
      : ModelRef(*holder.ptr()) {}
  template <typename M>
  ModelRef(DistributedDataParallel<M>& wrapped)  // NOLINT(google-explicit-constructor)
      : module_(*wrapped.module()), group_(&wrapped.group()), reducer_(&wrapped.reducer()) {}
  template <typename M>
  ModelRef(FullyShardedDataParallel<M>& wrapped)  // NOLINT(google-explicit-constructor)
      : module_(*wrapped.module()), group_(&wrapped.group()), units_(&wrapped.units()) {}

  torch::nn::Module& module() const { return module_; }  // without the wrapper
  const Group* group() const { return group_; }          // null: none is known
  GradientReducer* reducer() const { return reducer_; }
  ShardedUnits* units() const { return units_; }  // of a fully sharded module; else null

 private:
  torch::nn::Module& module_;
  const Group* group_ = nullptr;
  GradientReducer* reducer_ = nullptr;
  ShardedUnits* units_ = nullptr;
};

struct SaveOptions {
  int64_t keep = 2;                  // newest checkpoints that stay; 0: all
  GradientScaler* scaler = nullptr;  // fp16's, if there is one
};

// Writes DIRECTORY/step_00001000/: parameters, buffers (rank 0's, and of other ranks those that
// differ), the optimizer's state and options, the random generators of all ranks, and `step`, the
// updates that are done. Changes nothing. `optimizer` is any, sharded or not, of the module's
// parameters; of a fully sharded module flashstep's AdamW. With several ranks (the model is
// wrapped, or the optimizer sharded) all of them call it; rank 0's directory is written. What was
// saved before stays whole whatever happens. Later steps are set aside, as by discard_after().
// What fails on one rank (MachineError: a full disk) is thrown on all, who can go on.
void save(const std::filesystem::path& directory, ModelRef model,
          torch::optim::Optimizer& optimizer, int64_t step, const SaveOptions& options = {});

// Takes back the newest checkpoint that is whole, and returns its step; 0, and nothing is changed,
// if there is none. `model` and `optimizer` are those that were saved, on any number of ranks
// (on another one all buffers are rank 0's, and a rank that was not there keeps its random
// generators, unless several were there and drew alike) and however sharded. UserError, on all
// ranks, for a checkpoint of another model (what differs first is named) or another optimizer, for
// one that may not be read, and if all that is there is damaged. A sentence on stderr for each
// damaged one that was passed over, which is renamed to
// *.damaged and stays. The directory is one program's: what another one has written since is set
// aside, too.
int64_t load_if_exists(const std::filesystem::path& directory, ModelRef model,
                       torch::optim::Optimizer& optimizer, const SaveOptions& options = {});

// Tensors in files that every framework reads: the safetensors format.

// What is known of a file that was written: enough to find out later whether it is still the same.
struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string hash;  // XXH3-128
};

// Writes `tensors` (any strides, any device, dense) to `path`, whole or not at all. Bytes are
// streamed: beside the tensors themselves one chunk of 16 MiB is held, through which tensors that
// are not contiguous CPU memory are copied piece by piece. Dtypes: all that torch and the format
// share. UserError for another dtype or layout and for names given
// twice; MachineError if writing fails.
WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// A safetensors file, memory-mapped. Opening reads and checks the header only.
class SafetensorsFile {
 public:
  // UserError, naming the file and what is wrong, for a file that is missing, truncated or
  // malformed.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  // A new contiguous CPU tensor with its own, aligned memory. UserError for an unknown name or for
  // a dtype that torch does not have.
  at::Tensor tensor(const std::string& name) const;
  // Its elements [begin, end), row by row: (end - begin), as tensor() else. Reads these alone.
  // UserError for a range that is not within the tensor.
  at::Tensor elements(const std::string& name, int64_t begin, int64_t end) const;
  // Copies into `destination`, which must have the same shape; any dtype, strides and device.
  void copy_to(const std::string& name, at::Tensor destination) const;
  // All tensors, in the order of the file's bytes.
  NamedTensors tensors() const;

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string source_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;  // name -> place in header_.tensors
};

// A checkpoint is a directory, RUN/checkpoints/step_00000100/, with
//   model.safetensors, optimizer.safetensors   tensors by name
//   state.json                                 step, the other files' hashes, the trainer's state
// (ranks that divide the optimizer's state write it into files of their own, each a share:
// optimizer.00002-of-00004.safetensors; those of ranks that do not see the directory are rank 0's
// optimizer.others.safetensors. With fully sharded parameters weights, too:
// model.00002-of-00004.safetensors, each with some tensors, which are whole).
// It is written under a temporary name, its files and itself fsynced, and renamed: a checkpoint
// that has its name is complete, whenever the process was killed or the power failed. On reading,
// every file is held against its hash; a damaged checkpoint is named, the one before it used.
//
// One process at a time may write into a `checkpoints` directory (the run's lock sees to that); any
// number may read.

struct Checkpoint {
  int64_t step = 0;        // optimizer updates done
  NamedTensors model;      // parameters and buffers
  NamedTensors optimizer;  // the optimizer's tensors
  // A JSON object, the trainer's own: config, schedule, random generators, data position.
  std::string state_json = "{}";
  bool model_is_divided = false;  // when it is written: each rank has some tensors, whole
};

// To be called once when a run starts, before anything else here: removes what a killed process
// left behind (and finishes a replacement that it had begun). Creates the directory if there is
// none.
void prepare_checkpoints(const std::filesystem::path& checkpoints);

// Writes `checkpoint` and removes all but the newest `keep` (0 keeps all). Checkpoints of later
// steps, which belong to a future that was given up, are renamed to *.discarded, which the next
// save removes, or to *.damaged where their state.json or a file's size says so. Those that cannot
// be read for the moment are left alone. What holds other files than a checkpoint's is never
// removed. Write everything else about the step before: what is done after the
// checkpoint may be lost. Throws MachineError when the machine fails: the checkpoints that were
// there are still there then, and nothing half-written is. Returns the checkpoint's directory.
//
// With `group` all its ranks call it, with checkpoint.optimizer, and a model that is divided, each
// rank's own share; all else is rank 0's. It returns on all of them when the checkpoint has its
// name. Whatever failed on whichever rank, all throw, and can go on; only an exchange that breaks
// off half-way (a lost rank, memory that ends while receiving) is left to the group: who catches it
// calls group.fail(), as run() does.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const Checkpoint& checkpoint, int64_t keep,
                                      const Group* group = nullptr);

// The same of one process into a directory of any name, where only a checkpoint may lie, which it
// replaces.
void write_checkpoint(const std::filesystem::path& directory, const Checkpoint& checkpoint);

// The steps that have a checkpoint, ascending; empty if the directory is missing.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& checkpoints);

// The directory of one step's checkpoint.
std::filesystem::path checkpoint_directory(const std::filesystem::path& checkpoints, int64_t step);

using WarnFunction = std::function<void(const std::string& sentence)>;

// The newest checkpoint that is whole; `warn` gets a sentence for each damaged one on the way.
// Nothing if there is no checkpoint at all; UserError if there are some and all are damaged, for
// starting anew would overwrite what may yet be rescued. One that cannot be read is not known to be
// damaged: UserError where it is forbidden, MachineError for a failing disk or too many open files.
std::optional<Checkpoint> load_newest(const std::filesystem::path& checkpoints,
                                      const WarnFunction& warn);

// The checkpoint in `directory` (.../step_00000100). UserError if it is damaged, naming the file.
// All tensors are on the CPU.
Checkpoint load_checkpoint(const std::filesystem::path& directory);

// To be called when a run goes on from `step`, before it writes anything: checkpoints of later
// steps are set aside (renamed to *.discarded, removed by the next save; damaged ones to *.damaged,
// which stay), so that a second resume cannot pick one of them while the metrics have forgotten its
// steps. One that cannot be read for the moment is left alone.
void discard_after(const std::filesystem::path& checkpoints, int64_t step);

// Weights alone, to start another run from: `path` is a .safetensors file, a checkpoint, a
// directory of checkpoints or a run.
NamedTensors load_weights(const std::filesystem::path& path, const WarnFunction& warn);

}  // namespace flashstep
