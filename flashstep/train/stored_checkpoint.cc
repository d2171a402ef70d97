#include "flashstep/train/stored_checkpoint.h"

#include <memory>
#include <set>
#include <sstream>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/train/checkpoint_folder.h"
#include "flashstep/train/checkpoint_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

CheckpointState read_state(const fs::path& directory) {
  const fs::path path = directory / kStateName;
  CheckpointState state = parse_checkpoint_state(read_file(path), path.string());
  const int64_t named = step_of(directory);
  require(named < 0 || named == state.step, "[checkpoint] ", path.string(), ": expected step ",
          named, ", got ", state.step);
  return state;
}

void check_size(const fs::path& path, uint64_t expected) {
  std::error_code error;
  const uint64_t size_bytes = fs::file_size(path, error);
  require(error != std::errc::no_such_file_or_directory, "[checkpoint] expected the file ",
          path.string(), ", got: ", error.message());
  if (error) throw MachineError(str("cannot read ", path, ": ", error.message()));
  require(size_bytes == expected, "[checkpoint] ", path.string(), ": expected ", expected,
          " bytes, got ", size_bytes);
}

// The files that hold `part`, each held against its size and hash.
TensorFiles open_part(const fs::path& directory, const CheckpointState& state,
                      const std::string& part) {
  std::vector<fs::path> paths;
  for (const CheckpointFile& file : state.files) {
    if (file.part != part) continue;
    const fs::path path = directory / file.name;
    check_size(path, file.size_bytes);
    const std::string hash = hash_file(path);
    require(hash == file.hash, "[checkpoint] ", path.string(), ": expected contents with the hash ",
            file.hash, ", got ", hash, " (the file is damaged)");
    paths.push_back(path);
  }
  return open_tensors(std::move(paths));
}

TensorFiles open_model(const fs::path& directory) {
  CheckpointState state = read_state(directory);
  TensorFiles files = open_part(directory, state, "model");
  files.state_json = std::move(state.state_json);
  return files;
}

constexpr const char* kMayBeWhole =
    "; it may be whole: make it readable, or move it away to go on from an earlier checkpoint";

// open(directory) of the newest checkpoint that is not damaged. One that cannot be read for the
// moment is not known to be.
template <typename Open>
auto newest_with(const fs::path& checkpoints, const WarnFunction& warn, Open open)
    -> std::optional<decltype(open(checkpoints))> {
  std::vector<int64_t> steps = list_checkpoints(checkpoints);
  std::string reason;
  constexpr int kMostReplaced = 20;  // lists that a run made stale while they were read
  int replaced = 0;
  for (size_t left = steps.size(); left > 0;) {
    const int64_t step = steps[--left];
    try {
      return open(checkpoint_directory(checkpoints, step));
    } catch (const ForbiddenFile& error) {
      throw UserError(str("[checkpoint] ", error.what(), kMayBeWhole));
    } catch (const MachineError& error) {
      throw MachineError(str("[checkpoint] ", error.what(), kMayBeWhole));
    } catch (const UserError& error) {
      // A run that trains removes checkpoints when it has newer ones.
      if (std::vector<int64_t> now = list_checkpoints(checkpoints);
          now != steps && ++replaced <= kMostReplaced) {
        steps = std::move(now);
        left = steps.size();
        continue;
      }
      if (reason.empty()) reason = error.what();
      if (warn) warn(str(error.what(), "; looking for an earlier checkpoint than step ", step));
    }
  }
  require(steps.empty(), "[checkpoint] expected a whole checkpoint in ", checkpoints.string(),
          ", got damaged ones only: ", reason);
  return std::nullopt;
}

NamedTensors read_all(const TensorFiles& files) {
  NamedTensors tensors;
  for (const StoredTensor& tensor : files.tensors)
    tensors.emplace_back(tensor.name, tensor.whole());
  return tensors;
}

Checkpoint read_all(const StoredCheckpoint& stored) {
  return {stored.step, read_all(stored.model), read_all(stored.optimizer), stored.state_json};
}

// How many files the model has in the checkpoint in `directory`; 0 where `name` is none of them.
int64_t parts_of_model(const fs::path& directory, const fs::path& name) {
  CheckpointState state;
  try {
    state = read_state(directory);
  } catch (const UserError&) {  // none, or somebody else's file of this name
    return 0;
  }
  int64_t parts = 0;
  bool is_among = false;
  for (const CheckpointFile& file : state.files) {
    if (file.part != "model") continue;
    ++parts;
    is_among |= file.name == name;
  }
  return is_among ? parts : 0;
}

// By which another rank finds out that a file of this name is the same one; "" if there is none. A
// copy on another machine's disk has another number or time.
std::string identity(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return str(status.st_ino, " ", status.st_size, " ", status.st_mtim.tv_sec, " ",
             status.st_mtim.tv_nsec);
}

}  // namespace

StoredCheckpoint open_checkpoint(const fs::path& named) {
  const fs::path directory = readable_checkpoint(named);
  CheckpointState state = read_state(directory);
  return {state.step, std::move(state.state_json), open_part(directory, state, "model"),
          open_part(directory, state, "optimizer")};
}

std::optional<StoredCheckpoint> open_newest(const fs::path& checkpoints, const WarnFunction& warn) {
  return newest_with(checkpoints, warn, open_checkpoint);
}

Condition condition_of(const fs::path& directory, Compared compared) {
  try {
    if (compared == Compared::kHashes) {
      open_checkpoint(directory);
    } else {
      for (const CheckpointFile& file : read_state(directory).files)
        check_size(directory / file.name, file.size_bytes);
    }
    return Condition::kWhole;
  } catch (const ForbiddenFile&) {
    return Condition::kUnknown;
  } catch (const UserError&) {
    return Condition::kDamaged;
  } catch (const std::exception&) {
    return Condition::kUnknown;
  }
}

TensorFiles open_weights(const fs::path& path, const WarnFunction& warn) {
  if (fs::is_regular_file(path)) {
    const fs::path directory = fs::absolute(path).parent_path();
    const int64_t parts = parts_of_model(directory, path.filename());
    require(parts <= 1, "[checkpoint] expected the weights of a model, got ", path.string(),
            ", one of the ", parts, " files that have them: name the checkpoint, ",
            directory.string());
    return parts == 1 ? open_model(directory) : open_tensors({path});
  }
  if (fs::exists(path / kStateName)) return open_model(path);
  const fs::path checkpoints = fs::is_directory(path / "checkpoints") ? path / "checkpoints" : path;
  std::optional<TensorFiles> files = newest_with(checkpoints, warn, open_model);
  require(files.has_value(),
          "[checkpoint] expected a .safetensors file, a checkpoint or a run with one, got ",
          path.string(), fs::exists(path) ? "" : ", which does not exist");
  return std::move(*files);
}

Checkpoint load_checkpoint(const fs::path& directory) {
  return read_all(open_checkpoint(directory));
}

std::optional<Checkpoint> load_newest(const fs::path& checkpoints, const WarnFunction& warn) {
  const auto stored = open_newest(checkpoints, warn);
  return stored ? std::make_optional(read_all(*stored)) : std::nullopt;
}

NamedTensors load_weights(const fs::path& path, const WarnFunction& warn) {
  return read_all(open_weights(path, warn));
}

TensorFiles open_tensors(std::vector<fs::path> paths) {
  TensorFiles files{std::move(paths), {}};
  std::set<std::string> names;
  for (const fs::path& path : files.paths) {
    const auto file = std::make_shared<const SafetensorsFile>(path);
    for (const SafetensorsEntry& entry : file->header().tensors) {
      require(names.insert(entry.name).second, "[checkpoint] ", path.string(),
              ": expected every tensor in one file, got \"", entry.name, "\" again");
      const at::ScalarType dtype = file->elements(entry.name, 0, 0).scalar_type();
      const auto read = [file, name = entry.name](int64_t begin, int64_t end) {
        return file->elements(name, begin, end);
      };
      files.tensors.push_back(
          {entry.name, at::empty(entry.shape, at::TensorOptions(at::kMeta).dtype(dtype)), read});
    }
  }
  return files;
}

StoredCheckpoint in_memory(const Checkpoint& checkpoint) {
  return {checkpoint.step,
          checkpoint.state_json,
          {{}, in_memory(checkpoint.model)},
          {{}, in_memory(checkpoint.optimizer)}};
}

TensorFiles share_tensors(TensorFiles files, const Group* group) {
  if (group == nullptr) return files;
  std::string shown;  // rank 0's identities and names
  for (const fs::path& path : files.paths)
    shown += identity(path) + '\0' + fs::absolute(path).string() + '\0';
  std::istringstream texts(group->broadcast(shown));
  std::vector<fs::path> paths;
  bool sees_all = !files.paths.empty() || files.tensors.empty();
  for (std::string known, path; std::getline(texts, known, '\0') && std::getline(texts, path, '\0');
       paths.emplace_back(path)) {
    sees_all = sees_all && !known.empty() && identity(path) == known;
  }
  if (group->all_reduce(sees_all ? 1 : 0, Reduce::kMin) == 0) {
    files.tensors = stored_on_first_rank(std::move(files.tensors), *group);
  } else if (!group->is_first()) {
    files = open_tensors(std::move(paths));
  }
  return files;
}

std::optional<StoredCheckpoint> share_checkpoint(std::optional<StoredCheckpoint> checkpoint,
                                                 const Group* group) {
  if (group == nullptr) return checkpoint;
  std::string text;  // step and state; empty: there is none
  if (checkpoint) text = str(checkpoint->step, " ", checkpoint->state_json);
  text = group->broadcast(text);
  if (text.empty()) return std::nullopt;
  StoredCheckpoint shared = std::move(checkpoint).value_or(StoredCheckpoint());
  shared.step = std::stoll(text);
  shared.state_json = text.substr(text.find(' ') + 1);
  shared.model = share_tensors(std::move(shared.model), group);
  shared.optimizer = share_tensors(std::move(shared.optimizer), group);
  return shared;
}

}  // namespace flashstep
