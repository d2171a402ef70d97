#include "flashstep/train/sharded_checkpoint.h"

#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "flashstep/base/error.h"
#include "flashstep/parallel/named_tensors.h"

namespace flashstep::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// "00002-of-00004", as files of many parts are commonly numbered.
std::string part_name(int rank, int world_size) {
  char name[48];
  std::snprintf(name, sizeof name, "optimizer.%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

// Writes one file; returns its record, or why it could not be written.
Json try_write(const fs::path& directory, const std::string& name, const NamedTensors& tensors) {
  try {
    const WrittenFile written = write_safetensors(directory / name, tensors, {{"format", "pt"}});
    return {{"name", name}, {"size_bytes", written.size_bytes}, {"hash", written.hash}};
  } catch (const MachineError& error) {
    return {{"error", error.what()}};
  }
}

// Every rank's share, in files in rank 0's `directory`. All ranks call it and get the same.
std::vector<CheckpointFile> write_shares(const fs::path& directory, const NamedTensors& own,
                                         const comm::Group& group) {
  const fs::path shared =
      group.broadcast(group.is_first() ? fs::absolute(directory).string() : "", 0);
  std::error_code error;
  const bool sees_it = fs::exists(shared / "model.safetensors", error);
  Json records = Json::array();
  if (sees_it) {
    records.push_back(try_write(shared, part_name(group.rank(), group.world_size()), own));
  }
  const NamedTensors of_others =
      parallel::gather_tensors(sees_it ? NamedTensors() : own, group, /*to=*/0);
  if (!of_others.empty()) {
    records.push_back(try_write(shared, "optimizer.others.safetensors", of_others));
  }
  std::vector<CheckpointFile> files;
  const std::vector<std::string> all = group.all_gather(records.dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const Json& record : Json::parse(all[rank])) {
      if (record.contains("error")) {
        throw MachineError(str("[checkpoint] rank ", rank,
                               " cannot write its share: ", record.at("error").get<std::string>()));
      }
      files.push_back({record.at("name"), "optimizer", record.at("size_bytes"), record.at("hash")});
    }
  }
  return files;
}

}  // namespace

void save_checkpoint_together(const fs::path& checkpoints, const Checkpoint& checkpoint,
                              int64_t keep, const comm::Group& group) {
  if (!group.is_first()) {
    write_shares({}, checkpoint.optimizer, group);
    return;
  }
  save_checkpoint(checkpoints, checkpoint, keep, [&](const fs::path& directory) {
    return write_shares(directory, checkpoint.optimizer, group);
  });
}

}  // namespace flashstep::train
