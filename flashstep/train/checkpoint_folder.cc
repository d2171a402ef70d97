#include "flashstep/train/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "flashstep/base/places.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// What a directory in `checkpoints` is, by the end of its name.
constexpr std::string_view kUnfinished = ".unfinished";  // being written or being removed
constexpr std::string_view kReplaced = ".replaced";    // makes room for a new one of the same step
constexpr std::string_view kDiscarded = ".discarded";  // of a future that was given up
constexpr std::string_view kDamaged = ".damaged";      // not to be read; stays for who can mend it
constexpr std::string_view kPrefix = "step_";

fs::path with_suffix(const fs::path& directory, std::string_view suffix) {
  return fs::path(directory) += suffix;
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw MachineError(str("cannot rename ", from, " to ", to, ": ", error.message()));
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

// model.safetensors, model.others.safetensors, model.00002-of-00004.safetensors.
bool is_part_name(std::string_view name) {
  constexpr std::string_view kEnding = ".safetensors", kShare = ".ddddd-of-ddddd";
  if (!name.ends_with(kEnding)) return false;
  name.remove_suffix(kEnding.size());
  for (const std::string_view part : {"model", "optimizer"}) {
    if (!name.starts_with(part)) continue;
    const std::string_view rest = name.substr(part.size());
    const auto fits = [](char expected, char c) {
      return expected == 'd' ? '0' <= c && c <= '9' : expected == c;
    };
    return rest.empty() || rest == ".others" ||
           std::equal(kShare.begin(), kShare.end(), rest.begin(), rest.end(), fits);
  }
  return false;
}

// Whether nothing lies in the directory but what checkpoints consist of.
bool is_all_ours(const fs::path& directory) {
  return flashstep::is_all_ours(directory, is_checkpoint_file);
}

void remove_if_ours(const fs::path& directory) {
  flashstep::remove_if_ours(directory, is_checkpoint_file);
}

// The names beside `directory`: step_00000100.unfinished, step_00000100-2.unfinished, ...
fs::path numbered_name(const fs::path& directory, int number, std::string_view suffix) {
  return with_suffix(directory, number == 1 ? std::string(suffix) : str("-", number, suffix));
}

bool is_taken(const fs::path& name) { return fs::exists(fs::symlink_status(name)); }

// The first of them that nobody has.
fs::path free_name(const fs::path& directory, std::string_view suffix) {
  int number = 1;
  while (is_taken(numbered_name(directory, number, suffix))) ++number;
  return numbered_name(directory, number, suffix);
}

// Under a name with `suffix`; what we have left under it goes.
fs::path set_aside(const fs::path& directory, std::string_view suffix) {
  remove_if_ours(with_suffix(directory, suffix));
  const fs::path aside = free_name(directory, suffix);
  rename_path(directory, aside);
  return aside;
}

// Where a process that was killed while it replaced `directory` has left what was there; "" if none
// was.
fs::path what_was_replaced(const fs::path& directory) {
  for (int number = 1;; ++number) {
    const fs::path name = numbered_name(directory, number, kReplaced);
    if (is_all_ours(name)) return name;
    if (!is_taken(name)) return {};
  }
}

// Of step_00000100.unfinished and step_00000100-2.unfinished the step's own name; "" for a name of
// another kind.
fs::path named_before(const fs::path& entry, std::string_view suffix) {
  const std::string name = entry.filename().string();
  const fs::path own = entry.parent_path() / name.substr(0, name.find_first_of("-."));
  return entry.extension() == suffix && step_of(own) >= 0 ? own : fs::path();
}

void replace_directory(const fs::path& from, const fs::path& to) {
  const bool replaces = is_taken(to);
  const fs::path aside = replaces ? set_aside(to, kReplaced) : fs::path();
  try {
    rename_path(from, to);
  } catch (const MachineError&) {
    std::error_code ignored;  // prepare_checkpoints() does it if this fails too
    if (replaces) fs::rename(aside, to, ignored);
    throw;
  }
  sync_directory(to.parent_path());
  if (replaces) remove_if_ours(aside);
}

// `aside` makes room for it: comes back, unless what replaces it has its name already.
void finish_replacement(const fs::path& directory, const fs::path& aside) {
  if (!is_all_ours(aside)) return;
  if (fs::exists(directory)) {
    remove_if_ours(aside);
  } else {
    rename_path(aside, directory);
  }
}

// "folder/" is "folder".
fs::path without_slash(const fs::path& directory) {
  const fs::path whole = fs::absolute(directory).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

// Their new names. One that cannot be read for the moment keeps its own.
std::vector<fs::path> set_later_aside(const fs::path& checkpoints, int64_t step,
                                      Compared compared) {
  std::vector<fs::path> renamed;
  for (const int64_t later : list_checkpoints(checkpoints)) {
    if (later <= step) continue;
    const fs::path directory = checkpoint_directory(checkpoints, later);
    const Condition condition = condition_of(directory, compared);
    if (condition == Condition::kUnknown) continue;
    if (condition == Condition::kWhole) {
      renamed.push_back(set_aside(directory, kDiscarded));
    } else {
      renamed.push_back(free_name(directory, kDamaged));
      rename_path(directory, renamed.back());
    }
  }
  if (!renamed.empty()) sync_directory(checkpoints);
  return renamed;
}

std::vector<fs::path> set_surplus_aside(const fs::path& checkpoints, int64_t newest_step,
                                        int64_t keep) {
  std::vector<fs::path> aside;
  for (const fs::path& entry : entries(checkpoints)) {
    if (!named_before(entry, kDiscarded).empty()) aside.push_back(entry);
  }
  // kSizes: other ranks wait. What is set aside now, perhaps under a name of these, stays.
  const auto later = set_later_aside(checkpoints, newest_step, Compared::kSizes);
  std::erase_if(aside, [&](const fs::path& name) { return std::ranges::count(later, name) > 0; });
  std::vector<int64_t> steps = list_checkpoints(checkpoints);
  std::erase_if(steps, [&](int64_t step) { return step > newest_step; });
  const int64_t surplus = keep == 0 ? 0 : static_cast<int64_t>(steps.size()) - keep;
  for (int64_t i = 0; i < surplus; ++i) {
    const fs::path directory = checkpoint_directory(checkpoints, steps[static_cast<size_t>(i)]);
    // So that a process killed while removing it leaves no checkpoint with half of its files.
    if (is_all_ours(directory)) aside.push_back(set_aside(directory, kUnfinished));
  }
  return aside;
}

}  // namespace

bool is_checkpoint_file(std::string_view name) {
  return name == kStateName || name == kWordName || is_part_name(name);
}

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
    if (!named_before(entry, kUnfinished).empty()) remove_if_ours(entry);
    const fs::path replaced = named_before(entry, kReplaced);
    if (!replaced.empty()) finish_replacement(replaced, entry);
  }
  sync_directory(checkpoints);
}

void discard_after(const fs::path& checkpoints, int64_t step) {
  set_later_aside(checkpoints, step, Compared::kHashes);
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
  if (fs::exists(directory)) return directory;
  const fs::path aside = what_was_replaced(without_slash(directory));
  return aside.empty() ? directory : aside;
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
  if (!begun_) return;
  try {
    remove_if_ours(path_);
  } catch (const MachineError&) {  // prepare_checkpoints() does it
  }
}

void UnfinishedCheckpoint::begin() {
  begun_ = true;
  make_directories(checkpoints_);
  finish_replacement(directory_, what_was_replaced(directory_));
  remove_if_ours(path_);
  path_ = free_name(directory_, kUnfinished);
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
  for (const fs::path& directory : directories) remove_if_ours(directory);
}

}  // namespace flashstep
