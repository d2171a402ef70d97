// A checkpoint that is written while training goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "flashstep/checkpoint.h"
#include "flashstep/train/checkpoint_folder.h"
#include "flashstep/train/checkpoint_state.h"

namespace flashstep {

// save_checkpoint() in its parts: all that ranks do together is done when it is made and when it is
// finished, in between a thread writes this rank's files. What fails is thrown by either, on all
// ranks, as by save_checkpoint().
class CheckpointInWriting {
 public:
  // With `in_background` the tensors may change as soon as this returns: they are copied to the
  // host's memory. Where that has no room for them, this returns when they are written. What comes
  // from ranks that do not see rank 0's directory is written then, too.
  CheckpointInWriting(const std::filesystem::path& checkpoints, Checkpoint checkpoint, int64_t keep,
                      const Group* group, bool in_background);
  // Of one process: finishes it. Else what is not finished is removed, when the thread has ended.
  ~CheckpointInWriting();
  CheckpointInWriting(const CheckpointInWriting&) = delete;
  CheckpointInWriting& operator=(const CheckpointInWriting&) = delete;

  bool is_written() const { return is_written_; }  // this rank's files
  // Waits until they are; the checkpoint has its name when this returns. All ranks call it. Older
  // ones that nobody keeps are removed, or, with `surplus`, put there to be (remove_trees).
  std::filesystem::path finish(std::vector<std::filesystem::path>* surplus = nullptr);

 private:
  struct File {
    std::string name, part;
    NamedTensors tensors;
  };
  void begin();
  void divide(const char* part, NamedTensors own, bool sees_it);
  double copied_bytes() const;
  bool start_writing();
  void write_one(const File& file);
  void write();
  void on_first(const std::function<void()>& work) const;

  const std::filesystem::path checkpoints_;
  Checkpoint checkpoint_;
  const int64_t keep_;
  const Group* const group_;  // or null
  UnfinishedCheckpoint unfinished_;
  CheckpointState state_;
  std::filesystem::path directory_;  // rank 0's
  std::vector<File> files_;          // that this rank writes
  std::vector<CheckpointFile> written_;
  std::exception_ptr failed_;
  std::atomic<bool> is_written_ = false;
  bool is_finished_ = false;
  std::thread writer_;
};

}  // namespace flashstep
