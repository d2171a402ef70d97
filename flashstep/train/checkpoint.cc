#include "flashstep/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <system_error>

#include <torch/types.h>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// What a directory in `checkpoints` is, by the end of its name.
constexpr std::string_view kUnfinished = ".unfinished";  // being written or being removed
constexpr std::string_view kReplaced = ".replaced";    // makes room for a new one of the same step
constexpr std::string_view kDiscarded = ".discarded";  // of a future that was given up
constexpr std::string_view kPrefix = "step_";
constexpr const char* kStateName = "state.json";

fs::path with_suffix(const fs::path& directory, std::string_view suffix) {
  return fs::path(directory) += suffix;
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw MachineError(str("cannot rename ", from, " to ", to, ": ", error.message()));
}

void remove_tree(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) throw MachineError(str("cannot remove ", directory, ": ", error.message()));
}

std::vector<fs::path> entries(const fs::path& directory) {
  std::error_code error;
  fs::directory_iterator iterator(directory, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  std::vector<fs::path> found;
  for (; !error && iterator != fs::directory_iterator(); iterator.increment(error)) {
    found.push_back(iterator->path());
  }
  if (error) throw MachineError(str("cannot list ", directory, ": ", error.message()));
  std::sort(found.begin(), found.end());
  return found;
}

// Whether nothing lies in the checkpoint but what checkpoints consist of.
bool is_all_ours(const fs::path& directory) {
  for (const fs::path& entry : entries(directory)) {
    const std::string name = entry.filename().string();
    const bool is_part = name.starts_with("model") || name.starts_with("optimizer");
    if (name != kStateName && name != "word_of_rank_0" &&
        !(is_part && name.find(".safetensors") != std::string::npos)) {
      return false;
    }
  }
  return true;
}

// Renames first, so that a process killed while removing leaves no checkpoint with half of its
// files.
void remove_checkpoint(const fs::path& directory) {
  const fs::path removed = with_suffix(directory, kUnfinished);
  remove_tree(removed);
  rename_path(directory, removed);
  remove_tree(removed);
}

// The step in a name such as step_00000100; -1 for any other name.
int64_t step_of(const fs::path& directory) {
  const std::string name = directory.filename().string();
  if (name.compare(0, kPrefix.size(), kPrefix) != 0) return -1;
  const char* end = name.data() + name.size();
  int64_t step = -1;
  const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  const bool ours = error == std::errc() && stopped == end && step >= 0 &&
                    checkpoint_directory("", step).string() == name;
  return ours ? step : -1;
}

void replace_directory(const fs::path& from, const fs::path& to) {
  const fs::path aside = with_suffix(to, kReplaced);
  const bool replaces = fs::exists(to);
  if (replaces) rename_path(to, aside);
  try {
    rename_path(from, to);
  } catch (const MachineError&) {
    std::error_code ignored;  // prepare_checkpoints() does it if this fails too
    if (replaces) fs::rename(aside, to, ignored);
    throw;
  }
  sync_directory(to.parent_path());
  if (replaces) remove_tree(aside);
}

void remove_surplus(const fs::path& checkpoints, int64_t newest_step, int64_t keep) {
  for (const fs::path& entry : entries(checkpoints)) {
    if (entry.extension() == kDiscarded) remove_tree(entry);
  }
  const std::vector<int64_t> steps = list_checkpoints(checkpoints);
  const auto behind = std::upper_bound(steps.begin(), steps.end(), newest_step);
  const int64_t surplus = keep == 0 ? 0 : std::distance(steps.begin(), behind) - keep;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    const fs::path directory = checkpoint_directory(checkpoints, *step);
    if ((step >= behind || std::distance(steps.begin(), step) < surplus) &&
        is_all_ours(directory)) {
      remove_checkpoint(directory);
    }
  }
}

void write_checkpoint(const fs::path& directory, const Checkpoint& checkpoint,
                      const WriteOptimizer& write_optimizer) {
  CheckpointState state{checkpoint.step, {}, checkpoint.state_json};
  const auto write_part = [&](const std::string& part, const NamedTensors& tensors) {
    const std::string name = part + ".safetensors";
    const WrittenFile written = write_safetensors(directory / name, tensors, {{"format", "pt"}});
    state.files.push_back({name, part, written.size_bytes, written.hash});
  };
  write_part("model", checkpoint.model);
  if (write_optimizer) {
    for (CheckpointFile& file : write_optimizer(directory)) state.files.push_back(std::move(file));
  } else {
    write_part("optimizer", checkpoint.optimizer);
  }
  write_file(directory / kStateName, format_checkpoint_state(state));
  sync_directory(directory);
}

CheckpointState read_state(const fs::path& directory) {
  const fs::path path = directory / kStateName;
  CheckpointState state = parse_checkpoint_state(read_file(path), path.string());
  const int64_t named = step_of(directory);
  require(named < 0 || named == state.step, "[checkpoint] ", path.string(), ": expected step ",
          named, ", got ", state.step);
  return state;
}

// Adds the tensors of the files that hold `part`, each held against its size and hash first.
void load_part(const fs::path& directory, const CheckpointState& state, const std::string& part,
               NamedTensors& tensors) {
  std::set<std::string> names;
  for (const CheckpointFile& file : state.files) {
    if (file.part != part) continue;
    const fs::path path = directory / file.name;
    std::error_code error;
    const uint64_t size_bytes = fs::file_size(path, error);
    require(!error, "[checkpoint] expected the file ", path.string(), ", got: ", error.message());
    require(size_bytes == file.size_bytes, "[checkpoint] ", path.string(), ": expected ",
            file.size_bytes, " bytes, got ", size_bytes);
    const std::string hash = hash_file(path);
    require(hash == file.hash, "[checkpoint] ", path.string(), ": expected contents with the hash ",
            file.hash, ", got ", hash, " (the file is damaged)");
    for (auto& [name, tensor] : SafetensorsFile(path).tensors()) {
      require(names.insert(name).second, "[checkpoint] ", path.string(),
              ": expected every tensor in one file, got \"", name, "\" again");
      tensors.emplace_back(name, std::move(tensor));
    }
  }
}

NamedTensors load_model(const fs::path& directory) {
  NamedTensors model;
  load_part(directory, read_state(directory), "model", model);
  return model;
}

// load(directory) of the newest checkpoint for which it does not throw.
template <typename Load>
auto newest_with(const fs::path& checkpoints, const WarnFunction& warn, Load load)
    -> std::optional<decltype(load(checkpoints))> {
  const std::vector<int64_t> steps = list_checkpoints(checkpoints);
  std::string reason;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto note = [&](const char* what) {
      if (reason.empty()) reason = what;
      if (warn) warn(str(what, "; looking for an earlier checkpoint than step ", *step));
    };
    try {
      return load(checkpoint_directory(checkpoints, *step));
    } catch (const UserError& error) {
      note(error.what());
    } catch (const MachineError& error) {
      note(error.what());
    }
  }
  require(steps.empty(), "[checkpoint] expected a whole checkpoint in ", checkpoints.string(),
          ", got damaged ones only: ", reason);
  return std::nullopt;
}

}  // namespace

fs::path checkpoint_directory(const fs::path& checkpoints, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix.data(), static_cast<long long>(step));
  return checkpoints / name;
}

std::vector<int64_t> list_checkpoints(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  for (const fs::path& entry : entries(checkpoints)) {
    if (step_of(entry) >= 0) steps.push_back(step_of(entry));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void prepare_checkpoints(const fs::path& checkpoints) {
  make_directories(checkpoints);
  for (const fs::path& entry : entries(checkpoints)) {
    if (entry.extension() == kUnfinished) remove_tree(entry);
    if (entry.extension() != kReplaced) continue;
    const fs::path original = checkpoints / entry.stem();
    if (fs::exists(original)) {
      remove_tree(entry);
    } else {
      rename_path(entry, original);
    }
  }
  sync_directory(checkpoints);
}

fs::path save_checkpoint(const fs::path& checkpoints, const Checkpoint& checkpoint, int64_t keep,
                         const WriteOptimizer& write_optimizer) {
  require(checkpoint.step >= 0 && keep >= 0,
          "[checkpoint] expected step and keep of at least 0, got ", checkpoint.step, " and ",
          keep);
  const fs::path directory = checkpoint_directory(checkpoints, checkpoint.step);
  const fs::path unfinished = with_suffix(directory, kUnfinished);
  try {
    make_directories(checkpoints);
    remove_tree(unfinished);
    make_directories(unfinished);
    write_checkpoint(unfinished, checkpoint, write_optimizer);
    replace_directory(unfinished, directory);
    remove_surplus(checkpoints, checkpoint.step, keep);
  } catch (const std::exception& error) {
    std::error_code ignored;  // what cannot be removed now is removed by prepare_checkpoints()
    fs::remove_all(unfinished, ignored);
    const bool is_machines = dynamic_cast<const MachineError*>(&error) != nullptr ||
                             dynamic_cast<const std::system_error*>(&error) != nullptr;
    if (!is_machines) throw;
    throw MachineError(str("[checkpoint] cannot save step ", checkpoint.step,
                           " (earlier checkpoints are untouched): ", error.what()));
  }
  return directory;
}

Checkpoint load_checkpoint(const fs::path& directory) {
  CheckpointState state = read_state(directory);
  Checkpoint checkpoint;
  checkpoint.step = state.step;
  checkpoint.state_json = std::move(state.state_json);
  load_part(directory, state, "model", checkpoint.model);
  load_part(directory, state, "optimizer", checkpoint.optimizer);
  return checkpoint;
}

std::optional<Checkpoint> load_newest(const fs::path& checkpoints, const WarnFunction& warn) {
  return newest_with(checkpoints, warn, load_checkpoint);
}

void discard_after(const fs::path& checkpoints, int64_t step) {
  for (const int64_t later : list_checkpoints(checkpoints)) {
    if (later <= step) continue;
    const fs::path directory = checkpoint_directory(checkpoints, later);
    remove_tree(with_suffix(directory, kDiscarded));
    rename_path(directory, with_suffix(directory, kDiscarded));
  }
  if (fs::exists(checkpoints)) sync_directory(checkpoints);
}

NamedTensors load_weights(const fs::path& path, const WarnFunction& warn) {
  if (fs::is_regular_file(path)) return SafetensorsFile(path).tensors();
  if (fs::exists(path / kStateName)) return load_model(path);
  const fs::path checkpoints = fs::is_directory(path / "checkpoints") ? path / "checkpoints" : path;
  std::optional<NamedTensors> weights = newest_with(checkpoints, warn, load_model);
  require(weights.has_value(),
          "[checkpoint] expected a .safetensors file, a checkpoint or a run with one, got ",
          path.string(), fs::exists(path) ? "" : ", which does not exist");
  return std::move(*weights);
}

}  // namespace flashstep
