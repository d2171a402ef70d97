// What a checkpoint holds, gathered from a running job and given back to it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "flashstep/checkpoint.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {

// Counters of a run that outlive a process.
struct RunCounters {
  int64_t skipped = 0;           // steps that changed nothing
  int64_t skipped_in_a_row = 0;  // up to now
  double first_held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();  // the last one
  double loss = std::numeric_limits<double>::quiet_NaN();           // of the last step
};

// AgreedError if a checkpoint could not be made of it, or not be read again.
void check_savable(const Job& job);

// The ranks each of which has a share of the optimizer's state to write (save_checkpoint); null:
// rank 0 writes all.
const Group* writing_group(const Job& job);

// `step` updates are done. The tensors are those of the job, not copies: save before going on. With
// several ranks all of them call it, and rank 0's is whole, but for an optimizer's state that is
// divided, of which each rank's holds its share. `step_state`: TrainStep::state(). Of the job's
// functions only those of `parallel` are called.
Checkpoint make_checkpoint(const Job& job, const NamedTensors& step_state,
                           const RunCounters& counters, int64_t step);
inline Checkpoint make_checkpoint(const Job& job, const TrainStep& train_step,
                                  const RunCounters& counters, int64_t step) {
  return make_checkpoint(job, train_step.state(), counters, step);
}

// The fingerprint of the tokenizer whose ids the weights know; empty where the job gave none, and
// in checkpoints of earlier versions.
std::string tokenizer_of(const std::string& state_json);
// The config that the run had, as JSON; likewise "".
std::string config_of(const std::string& state_json);

// UserError for a state_json of weights alone.
void require_trainers_state(const std::string& state_json);

// The state_json of weights alone: of those that were not trained here.
std::string state_of_weights(const std::string& config_json, const std::string& tokenizer);

// Whether the checkpoint's run had other held-out data than the job; false where either is unknown.
bool has_other_held_out_data(const std::string& state_json, const Job& job);

// The state_json of a run's newest checkpoint whose state.json can be read; empty: there is none.
std::string newest_state(const std::filesystem::path& checkpoints);

// The fingerprint of the tokens that the run has read, by that; empty: it says none.
std::string tokens_read_by(const std::filesystem::path& checkpoints);

// Gives everything back, one tensor after the other, of which each rank reads its share alone. With
// several ranks all of them call it, with what share_checkpoint gave them. UserError if the
// checkpoint is of another module (AgreedError: a name or shape differs), of another optimizer,
// read other data, had another tokenizer, or is refused by job.check_config.
using LoadStepState = std::function<void(const NamedTensors& step_state)>;
RunCounters restore_checkpoint(StoredCheckpoint checkpoint, const Job& job,
                               const LoadStepState& load_step_state);
inline RunCounters restore_checkpoint(StoredCheckpoint checkpoint, const Job& job,
                                      TrainStep& train_step) {
  return restore_checkpoint(std::move(checkpoint), job,
                            [&](const NamedTensors& state) { train_step.load_state(state); });
}

}  // namespace flashstep
