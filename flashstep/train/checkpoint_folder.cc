#include "flashstep/train/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "flashstep/checkpoint.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// What a directory in `checkpoints` is, by the end of its name.
constexpr std::string_view kUnfinished = ".unfinished";  // being written or being removed
constexpr std::string_view kReplaced = ".replaced";    // makes room for a new one of the same step
constexpr std::string_view kDiscarded = ".discarded";  // of a future that was given up
constexpr std::string_view kPrefix = "step_";

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
    if (name != kStateName && name != kWordName &&
        !(is_part && name.find(".safetensors") != std::string::npos)) {
      return false;
    }
  }
  return true;
}

// So that a process killed while removing it leaves no checkpoint with half of its files.
fs::path set_aside(const fs::path& directory) {
  const fs::path aside = with_suffix(directory, kUnfinished);
  remove_tree(aside);
  rename_path(directory, aside);
  return aside;
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

// Of a replacement that a process was killed in: what was there comes back, unless what replaces it
// has its name already.
void finish_replacement(const fs::path& directory) {
  const fs::path aside = with_suffix(directory, kReplaced);
  if (!fs::exists(aside) || !is_all_ours(aside)) return;
  if (fs::exists(directory)) {
    remove_tree(aside);
  } else {
    rename_path(aside, directory);
  }
}

// "folder/" is "folder".
fs::path without_slash(const fs::path& directory) {
  const fs::path whole = fs::absolute(directory).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

std::vector<fs::path> set_surplus_aside(const fs::path& checkpoints, int64_t newest_step,
                                        int64_t keep) {
  std::vector<fs::path> aside;
  for (const fs::path& entry : entries(checkpoints)) {
    if (entry.extension() == kDiscarded) aside.push_back(entry);
  }
  const std::vector<int64_t> steps = list_checkpoints(checkpoints);
  const auto behind = std::upper_bound(steps.begin(), steps.end(), newest_step);
  const int64_t surplus = keep == 0 ? 0 : std::distance(steps.begin(), behind) - keep;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    const fs::path directory = checkpoint_directory(checkpoints, *step);
    if ((step >= behind || std::distance(steps.begin(), step) < surplus) && is_all_ours(directory))
      aside.push_back(set_aside(directory));
  }
  return aside;
}

}  // namespace

fs::path checkpoint_directory(const fs::path& checkpoints, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix.data(), static_cast<long long>(step));
  return checkpoints / name;
}

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
    if (entry.extension() == kReplaced) finish_replacement(checkpoints / entry.stem());
  }
  sync_directory(checkpoints);
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

UnfinishedCheckpoint::UnfinishedCheckpoint(fs::path checkpoints, int64_t step)
    : checkpoints_(std::move(checkpoints)),
      step_(step),
      directory_(checkpoint_directory(checkpoints_, step)),
      path_(with_suffix(directory_, kUnfinished)) {}

UnfinishedCheckpoint::UnfinishedCheckpoint(fs::path directory)
    : checkpoints_(without_slash(directory).parent_path()),
      directory_(without_slash(directory)),
      path_(with_suffix(directory_, kUnfinished)) {}

fs::path readable_checkpoint(const fs::path& directory) {
  const fs::path aside = with_suffix(without_slash(directory), kReplaced);
  return !fs::exists(directory) && fs::exists(aside) ? aside : directory;
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
  if (!begun_) return;
  std::error_code ignored;  // what cannot be removed now is removed by prepare_checkpoints()
  fs::remove_all(path_, ignored);
}

void UnfinishedCheckpoint::begin() {
  begun_ = true;
  make_directories(checkpoints_);
  finish_replacement(directory_);
  remove_tree(path_);
  make_directories(path_);
}

void UnfinishedCheckpoint::finish() {
  require(!fs::exists(directory_) || is_all_ours(directory_),
          "[checkpoint] expected a checkpoint or nothing in ", directory_.string(),
          ", which another is to replace, got somebody else's files");
  give_name();
}

void UnfinishedCheckpoint::give_name() {
  sync_directory(path_);
  replace_directory(path_, directory_);
  begun_ = false;
}

std::vector<fs::path> UnfinishedCheckpoint::finish(int64_t keep) {
  give_name();
  return set_surplus_aside(checkpoints_, step_, keep);
}

void remove_trees(const std::vector<fs::path>& directories) {
  for (const fs::path& directory : directories) remove_tree(directory);
}

}  // namespace flashstep
