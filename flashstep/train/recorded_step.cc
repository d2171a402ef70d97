#include "flashstep/train/recorded_step.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/comm/first_line.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/recorded_work.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/train/optimizer_options.h"

namespace flashstep {
namespace {

using torch::Tensor;

// Launched before one is recorded: the first makes the optimizer's state, counts gradients and
// opens connections between ranks, the second has their final buckets, and the third is what
// PyTorch advises (libraries load their kernels and choose workspaces when they are first called).
constexpr int64_t kLaunchedSteps = 3;

// "[train] expected GOT": how both modes begin.
constexpr const char* kExpected = "[train] expected steps that a CUDA graph can hold (train.graph ";

// One part's memory is lent to the next.
Recorder cuda_recorder() {
  return [last = std::shared_ptr<RecordedWork>()](const std::function<void()>& work) mutable {
    last = std::make_shared<RecordedWork>(work, last.get());
    return [recorded = last] { recorded->replay(); };
  };
}

// What keeps ranks' gradients out of a graph.
std::string why_not_reduced(const Parallelism& parallel, const std::vector<Tensor>& parameters) {
  if (parallel.world_size() == 1) return "";
  if (!goes_through_nccl(parameters, *parallel.group()))
    return "gradients that travel by Gloo, for which hosts wait";
  if (parallel.units() != nullptr && !parallel.units()->can_be_captured())
    return "fully sharded parameters or gradients that travel by collectives (parallel.peer_copies "
           "none, or parallel.shard_ranks 1)";
  if (parallel.reducer() == nullptr) return "";
  const ReducerOptions& options = parallel.reducer()->options();
  if (options.strategy == Strategy::kTorch)
    return "gradients averaged by c10d's Reducer (wrapper torch), whose host measures them";
  if (options.allow_unused)
    return "gradients that may be missing (allow_unused), of which the ranks' hosts talk";
  if (options.debug) return "ranks that compare what they send (debug), of which their hosts talk";
  return "";
}

}  // namespace

GraphMode graph_mode_by_name(const std::string& name) {
  if (name == "off") return GraphMode::kOff;
  if (name == "auto") return GraphMode::kAuto;
  require(name == "on", "[train] expected train.graph to be auto, on or off, got ", name);
  return GraphMode::kOn;
}

std::string why_not_recorded(const TrainStep& step) {
  if (!step.has_stage()) return "a loss that makes its own batches (Job::stage is not given)";
  const torch::optim::Optimizer& optimizer = step.optimizer();
  if (dynamic_cast<const AdamW*>(&optimizer) == nullptr &&
      dynamic_cast<const ShardedAdamW*>(&optimizer) == nullptr) {
    return "an optimizer that is not flashstep's AdamW, whose host counts and decides";
  }
  const torch::DeviceType device = step.device().type();
  if (at::autocast::is_autocast_enabled(device) && at::autocast::is_autocast_cache_enabled())
    return "autocast with its cache around the steps, where casts of weights would grow old";
  return why_not_reduced(step.parallel(), step.parameters());
}

RecordedStep::RecordedStep(TrainStep& step, GraphMode mode,
                           std::function<void(const std::string& sentence)> say, Recorder recorder)
    : step_(step),
      is_wanted_(mode != GraphMode::kOff),
      mode_(mode),
      say_(std::move(say)),
      recorder_(std::move(recorder)) {
  if (!is_wanted_) return;
  const bool on_gpu = recorder_ || step_.device().is_cuda();
  reason_ = on_gpu ? why_not_recorded(step_) : "a run on the CPU";
  if (reason_.empty()) return;
  if (mode_ == GraphMode::kOn) give_up(reason_);
  is_wanted_ = false;
  // Nothing that anybody would have to know: a CPU has no graphs, and Job::stage is how to ask.
  if (!on_gpu || !step_.has_stage()) reason_.clear();
}

StepResult RecordedStep::run(int64_t step) {
  if (!reason_.empty()) give_up(std::exchange(reason_, ""));
  if (!is_wanted_) return step_.run(step);
  if (is_recorded() && frozen() != frozen_) {  // somebody has moved or frozen a parameter, say
    replays_.clear();
    launched_ = 0;
  }
  if (!is_recorded() && (launched_++ < kLaunchedSteps || !record(step))) return step_.run(step);
  return replay(step);
}

RecordedStep::Frozen RecordedStep::frozen() const {
  Frozen now;
  for (const Tensor& parameter : step_.parameters()) {
    now.places.push_back(parameter.requires_grad() ? parameter.const_data_ptr() : nullptr);
  }
  for (const auto& group : step_.optimizer().param_groups()) {
    now.options.emplace_back(MuonOptions(options_of(group)), muon_options_of(group) != nullptr);
    now.options.back().first.lr(0);
  }
  return now;
}

// What the host does for a step: it brings the learning rates to the device, casts parameters that
// were written by hand anew, and looks for ranks that are lost, which replays do not.
void RecordedStep::prepare() {
  internal::refresh_copies_before_replay();
  if (step_.parallel().group() != nullptr) step_.parallel().group()->check("a step");
  if (auto* adamw = dynamic_cast<AdamW*>(&step_.optimizer())) {
    adamw->refresh_learning_rates();
  } else {
    static_cast<ShardedAdamW&>(step_.optimizer()).refresh_learning_rates();
  }
}

// Whether `step` can be replayed from now on. Nothing of it has run.
bool RecordedStep::record(int64_t step) {
  const Parallelism& parallel = step_.parallel();
  prepare();
  // State that came with a first gradient would be made anew by each replay.
  if (auto* adamw = dynamic_cast<AdamW*>(&step_.optimizer())) {
    adamw->allocate_state();
  } else {
    static_cast<ShardedAdamW&>(step_.optimizer()).allocate_state();
  }
  // Gradients of the steps before lie in memory that a replay does not know; what they leave is the
  // graph's.
  step_.optimizer().zero_grad();
  if (step_.device().is_cuda()) measure::release_cached_gpu_memory();
  // No rank's collectives are in flight.
  if (parallel.group() != nullptr) parallel.group()->barrier("recording a step");
  std::string reason = try_to_record(step);
  if (parallel.group() != nullptr) {
    const std::vector<std::string> all = parallel.group()->all_gather(reason);
    const auto first =
        std::find_if(all.begin(), all.end(), [](const auto& r) { return !r.empty(); });
    reason = first == all.end() ? "" : *first;
  }
  if (reason.empty()) {
    frozen_ = frozen();
    return true;
  }
  replays_.clear();
  values_.reset();
  forget_compute_copies();  // those that were noted as made while nothing ran
  if (parallel.reducer() != nullptr) parallel.reducer()->forget_step();
  if (parallel.units() != nullptr) parallel.units()->abandon();
  step_.optimizer().zero_grad();  // of the shards
  if (parallel.group() != nullptr) even_launched(*parallel.group());
  give_up(reason);
  return false;
}

// Empty, or why it was in vain.
std::string RecordedStep::try_to_record(int64_t step) {
  const int64_t last = step_.accumulation_steps() - 1;
  const auto work_of = [this, step, last](int64_t micro_step) {
    return [this, step, last, micro_step] {
      step_.add_micro_batch(step, micro_step);
      if (micro_step < last) return;
      const StepResult result = step_.finish();
      values_ = at::stack({result.loss, result.grad_norm.to(result.loss.device(), at::kFloat),
                           result.skipped.to(result.loss.device())});
    };
  };
  try {
    const std::unique_ptr<GpuStream> stream(recorder_ ? nullptr : new GpuStream);
    Recorder record = recorder_ ? recorder_ : cuda_recorder();
    replays_.push_back(record(work_of(0)));
    if (last > 1) replays_.push_back(record(work_of(1)));
    if (last > 0) replays_.push_back(record(work_of(last)));
    return "";
  } catch (const std::exception& error) {
    // A lost rank is no property of the step.
    if (step_.parallel().group() != nullptr) step_.parallel().group()->check("recording a step");
    return "one that failed while it was recorded: " + first_line(error);
  }
}

void RecordedStep::give_up(const std::string& reason) {
  is_wanted_ = false;
  const std::string sentence =
      flashstep::str(kExpected, mode_ == GraphMode::kOn ? "on" : "auto", "), got ", reason);
  if (mode_ == GraphMode::kOn) throw AgreedError(sentence);
  if (say_) say_(sentence + "; they are launched kernel by kernel");
}

StepResult RecordedStep::replay(int64_t step) {
  prepare();
  const int64_t last = step_.accumulation_steps() - 1;
  for (int64_t micro_step = 0; micro_step <= last; ++micro_step) {
    step_.stage(step, micro_step);
    (micro_step == 0 ? replays_.front() : micro_step == last ? replays_.back() : replays_[1])();
  }
  internal::note_replay();
  // The next replay writes over them.
  const Tensor values = values_.clone();
  return {values[0], values[1], values[2]};
}

}  // namespace flashstep
