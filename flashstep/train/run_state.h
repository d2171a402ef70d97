// What a checkpoint holds, gathered from a running job and given back to it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "flashstep/checkpoint.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"

namespace flashstep {

// Counters of a run that outlive a process.
struct RunCounters {
  int64_t skipped = 0;           // steps that changed nothing
  int64_t skipped_in_a_row = 0;  // up to now
  double first_held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();  // the last one
  double loss = std::numeric_limits<double>::quiet_NaN();           // of the last step
};

// Parameters and buffers by name, tied ones once.
NamedTensors module_tensors(const torch::nn::Module& module);

// The same; sharded parameters as they would be whole, on the meta device.
NamedTensors whole_tensors(const torch::nn::Module& module, const Parallelism& parallel);

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

// Rank 0's checkpoint (or that it has none) on every rank, but for the optimizer's tensors, which
// stay where they are. All ranks call it; the others' argument is ignored. `group` null: this
// process's own.
std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const Group* group);

// The fingerprint of the tokenizer whose ids the weights know; empty where the job gave none, and
// in checkpoints of earlier versions.
std::string tokenizer_of(const Checkpoint& checkpoint);

// Gives everything back, and lets go of the checkpoint's tensors on the way, so that the state is
// not there twice. With several ranks all of them call it, with what share_checkpoint gave them:
// each takes its share of rank 0's optimizer state. UserError if the checkpoint is of another
// module (AgreedError: a name or shape differs), of another optimizer, read other data, or is
// refused by job.check_config.
using LoadStepState = std::function<void(const NamedTensors& step_state)>;
RunCounters restore_checkpoint(Checkpoint checkpoint, const Job& job,
                               const LoadStepState& load_step_state);
inline RunCounters restore_checkpoint(Checkpoint checkpoint, const Job& job,
                                      TrainStep& train_step) {
  return restore_checkpoint(std::move(checkpoint), job,
                            [&](const NamedTensors& state) { train_step.load_state(state); });
}

// Weights alone, by name, into `module`. UserError naming what is missing, too many or of another
// shape; `source` says where they come from.
void load_module(torch::nn::Module& module, const NamedTensors& weights, const std::string& source);

}  // namespace flashstep
