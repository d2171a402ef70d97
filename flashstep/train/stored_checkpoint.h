// Checkpoints that are read in part: their tensors stay in their files until a rank asks for the
// elements that it needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/checkpoint.h"
#include "flashstep/group.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

// All tensors of some files, which stay open: what is removed meanwhile can still be read.
struct TensorFiles {
  std::vector<std::filesystem::path> paths;
  StoredTensors tensors;
  std::string state_json = "";  // of the checkpoint that they belong to; empty: to none
};

// UserError for a malformed file, a dtype that torch does not have, and a name that two files have.
TensorFiles open_tensors(std::vector<std::filesystem::path> paths);

struct StoredCheckpoint {
  int64_t step = 0;
  std::string state_json = "{}";
  TensorFiles model, optimizer;
};

// As load_checkpoint, load_newest and load_weights, which are made of these. Every file is held
// against its size and hash.
StoredCheckpoint open_checkpoint(const std::filesystem::path& directory);
std::optional<StoredCheckpoint> open_newest(const std::filesystem::path& checkpoints,
                                            const WarnFunction& warn);
TensorFiles open_weights(const std::filesystem::path& path, const WarnFunction& warn);

// What can be said of a checkpoint that is not opened. kUnknown: it cannot be read for the moment.
enum class Condition { kWhole, kDamaged, kUnknown };
// kSizes: state.json and the files' sizes only, which takes no time. kHashes: all of it.
enum class Compared { kSizes, kHashes };
Condition condition_of(const std::filesystem::path& directory, Compared compared);

StoredCheckpoint in_memory(const Checkpoint& checkpoint);

// UserError, naming the tensor, for one that write_safetensors would refuse: sparse, or of a dtype
// that the format does not have. One that is undefined yet passes.
void require_storable(const NamedTensors& tensors);

// As write_safetensors, of tensors that are read meanwhile: what makes 16 MiB of the file at a
// time.
WrittenFile write_stored(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata = {});

// Rank 0's files on every rank; the others' are ignored. If all ranks see them, each reads what it
// asks for, and nothing is sent; else (disks of several machines) rank 0 reads for all
// (stored_on_first_rank). So all ranks must read the same tensors in the same order. All ranks call
// it; `group` null: this process's own.
TensorFiles share_tensors(TensorFiles files, const Group* group);
// The same of a checkpoint, or that there is none.
std::optional<StoredCheckpoint> share_checkpoint(std::optional<StoredCheckpoint> checkpoint,
                                                 const Group* group);

}  // namespace flashstep
