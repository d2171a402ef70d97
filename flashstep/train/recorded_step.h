// Training steps in CUDA graphs: the first ones are launched kernel by kernel, as TrainStep does
// it; then a step is recorded, and from there on replayed, so that no host holds up the GPU. The
// arithmetic is the same, to the bit.
//
// A step is recorded in up to three parts, which share their memory: the first micro-batch, which
// makes the gradients; one that is added to them, replayed for each between; and the last with all
// that follows it (gradient synchronization, norm, clipping, update). Before each micro-batch its
// data are staged (StageFunction). What else changes from step to step lies on the device: AdamW's
// learning rates and step counts, the loss scale, the flag that skips an update, generators'
// offsets. Parameters may be written between two replays, as by any code between two steps.
//
// What a replay cannot do is found out before (why_not_recorded), or by the attempt: CUDA refuses
// to record what makes the host wait for the device (item(), a copy to the host). Then the run goes
// on with launched steps, or ends, as the GraphMode says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/loop.h"
#include "flashstep/optim.h"

namespace flashstep {

// Why steps of this kind cannot be recorded, to follow "got"; empty: nothing is known against it.
// The same on all ranks.
std::string why_not_recorded(const TrainStep& step);

// Records what `work` launches, without running it, and returns what runs it. What is recorded
// later, while this lives, may use its memory. Throws where that cannot be.
using Recorder = std::function<std::function<void()>(const std::function<void()>& work)>;

class RecordedStep {
 public:
  // `step` must outlive it; with several ranks all make the same calls. `say` gets the sentence of
  // GraphMode::kAuto. A `recorder` replaces CUDA's graphs (tests, on any device). UserError under
  // GraphMode::kOn if why_not_recorded().
  RecordedStep(TrainStep& step, GraphMode mode,
               std::function<void(const std::string& sentence)> say = {}, Recorder recorder = {});

  // TrainStep::run. UserError under GraphMode::kOn, on all ranks, if the step that shall be
  // recorded cannot be.
  StepResult run(int64_t step);

  bool is_recorded() const { return !replays_.empty(); }

 private:
  // What a recording holds as it was: another value asks for another recording.
  struct Frozen {
    std::vector<const void*> places;  // of parameters; null: not trained
    // Of groups, but for the learning rate; whether they are Muon's.
    std::vector<std::pair<MuonOptions, bool>> options;
    bool operator==(const Frozen& other) const = default;
  };
  Frozen frozen() const;
  void prepare();
  bool record(int64_t step);
  std::string try_to_record(int64_t step);
  void give_up(const std::string& reason);
  StepResult replay(int64_t step);

  TrainStep& step_;
  bool is_wanted_;
  const GraphMode mode_;
  std::function<void(const std::string& sentence)> say_;
  Recorder recorder_;
  int64_t launched_ = 0;
  std::string reason_;                          // to be told at the first step; or empty
  std::vector<std::function<void()>> replays_;  // of the parts
  Frozen frozen_;
  torch::Tensor values_;  // (3) float32: loss, norm, skipped
};

}  // namespace flashstep
