// A directory of checkpoints, by names alone: how one is begun, gets its name, and goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace flashstep {

inline constexpr const char* kStateName = "state.json";

// Lies in a checkpoint while ranks write their shares of it, with a word of this save alone: on
// another disk a directory of the same name may have been left behind by an earlier job.
inline constexpr const char* kWordName = "word_of_rank_0";

// Whether checkpoints have files of this name.
bool is_checkpoint_file(std::string_view name);

// The step in a name such as step_00000100; -1 for any other name.
int64_t step_of(const std::filesystem::path& directory);

// `directory`, or where its checkpoint lies since a process was killed that was replacing it.
std::filesystem::path readable_checkpoint(const std::filesystem::path& directory);

// Those that hold nothing but checkpoints' files. MachineError if one cannot be removed.
void remove_trees(const std::vector<std::filesystem::path>& directories);

// A checkpoint that is being written, under a name that nobody reads. What is begun is removed
// unless it is finished.
class UnfinishedCheckpoint {
 public:
  UnfinishedCheckpoint(std::filesystem::path checkpoints, int64_t step);
  // Of any name.
  explicit UnfinishedCheckpoint(std::filesystem::path directory);
  ~UnfinishedCheckpoint();
  UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
  UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }  // when it is begun
  void begin();                                                // makes the directory
  // Gives it its name, on the disk too. Checkpoints but the newest `keep` (0 keeps all) lose
  // theirs: what is returned is to be removed (remove_trees), which takes seconds where it is
  // large.
  [[nodiscard]] std::vector<std::filesystem::path> finish(int64_t keep);
  void finish();  // its name alone; UserError where something else than a checkpoint has it

 private:
  void give_name();
  const std::filesystem::path checkpoints_;
  const int64_t step_ = -1;
  const std::filesystem::path directory_;
  std::filesystem::path path_;
  bool begun_ = false;
};

}  // namespace flashstep
