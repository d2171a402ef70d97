// The training loop of any module: steps, metrics, evaluation, checkpoints, resuming, stopping.
//
// clang-format off
//   flashstep::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
//   flashstep::Job job{*net, optimizer, [&](int64_t step, int64_t micro_step) { return loss; }};
//   flashstep::LoopOptions options;
//   options.run_directory = "my_run";
//   options.steps = 1000;
//   flashstep::run(job, options);
// clang-format on
//
// (examples/own_module.cc is a whole program.) A run that was stopped, or killed at any moment, and
// is started again with options.resume goes on from its newest checkpoint as if it had never
// stopped.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/amp.h"
#include "flashstep/checkpoint.h"
#include "flashstep/data_parallel.h"
#include "flashstep/group.h"
#include "flashstep/optim.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// Losses are rank 0's: the others have NaN.
struct LoopResult {
  int64_t steps = 0;    // updates done, over all processes of this run
  int64_t skipped = 0;  // of them, those that changed nothing
  double first_held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step
};

enum class Precision {
  kFloat32,
  kBFloat16,  // autocast
  kFloat16,   // autocast and a GradientScaler
};
Precision precision_by_name(const std::string& name);  // "fp32", "bf16", "fp16"; else UserError

// The mean loss of one micro-batch, () and attached to the graph. A pure function of its arguments
// and of the parameters, if a resumed run shall repeat what a run that never stopped would have
// done.
using LossFunction = std::function<torch::Tensor(int64_t step, int64_t micro_step)>;

// Brings what the loss of this micro-batch reads to tensors that stay where they are, and returns
// before the device has it. Called before each LossFunction; in a step that is replayed from a CUDA
// graph in its place (GraphMode).
using StageFunction = std::function<void(int64_t step, int64_t micro_step)>;

// How the ranks that train together take part in a step. This is a process alone, which has nothing
// to do for it; data_parallelism() and full_sharding() make that of several.
class Parallelism {
 public:
  virtual ~Parallelism() = default;
  virtual const Group* group() const { return nullptr; }  // null: a process alone
  // What averages gradients, if something does; TrainStep clips by the norm of the means that it
  // left (GradientReducer::gradient_norm). A checkpoint keeps the order and size of its buckets,
  // which decide in which order gradients are summed.
  virtual GradientReducer* reducer() const { return nullptr; }
  // Before the forward of each micro-batch; what it returns is held until its backward has ended.
  // `is_last` of the step: its backward sends gradients, the others' only add them up.
  virtual std::shared_ptr<void> begin_micro_batch(bool /*is_last*/) { return nullptr; }
  // After the last backward: returns when the gradients are those of the global batch.
  virtual void synchronize_gradients() {}
  // Before an evaluation: buffers (running statistics), each rank's own while it trains and in
  // checkpoints, become rank 0's.
  virtual void synchronize_buffers() {}
  // Parameters that are whole only within call(); null: every rank has all of them.
  virtual ShardedUnits* units() const { return nullptr; }
  // forward(), which calls the module. With units all ranks call it equally often.
  virtual torch::Tensor call(const std::function<torch::Tensor()>& forward) { return forward(); }

  int rank() const { return group() == nullptr ? 0 : group()->rank(); }
  int world_size() const { return group() == nullptr ? 1 : group()->world_size(); }
  bool is_main_rank() const { return rank() == 0; }
};

// For a Job or TrainStep of several ranks: every rank's parameters become rank 0's, and gradients
// their mean over the ranks as by DistributedDataParallel; or parameters are divided as by
// FullyShardedDataParallel. The loss calls `module` itself, without a wrapper, within
// Parallelism::call; run() saves divided parameters with flashstep's AdamW. Module and group must
// outlive what is returned. UserError as the wrappers'.
std::shared_ptr<Parallelism> data_parallelism(const torch::nn::Module& module, const Group& group,
                                              const ReducerOptions& options = {});
std::shared_ptr<Parallelism> full_sharding(torch::nn::Module& module, const Group& group,
                                           const FullyShardOptions& options = {});

struct StepOptions {
  int64_t accumulation_steps = 1;  // micro-batches in a step
  double max_norm = 0;             // gradients are clipped to this global norm; 0: only measured
  Precision precision = Precision::kFloat32;
  // Backward updates parameters as soon as their gradients are there, and drops these (the
  // optimizer in backward): of a process alone, or fully sharded parameters; one micro-batch, no
  // clipping, no fp16, of one process no module called several times with recompute (UserError).
  // What gets a gradient that is not finite is left as it is, the rest updated.
  bool update_in_backward = false;
};

// What one step computed, on the device.
struct StepResult {
  torch::Tensor loss;       // () float32, mean over micro-batches and ranks
  torch::Tensor grad_norm;  // () float32, before clipping
  torch::Tensor skipped;    // () float32, 1 if loss or norm was not finite and nothing was updated
                            // (with update_in_backward: not all)
};

class UpdateInBackward;

// One training step of any module: forward and backward over the micro-batches, clipping, update.
class TrainStep {
 public:
  // `parameters` are those that the optimizer updates, `optimizer` and what the functions refer to
  // must outlive it. `parallel` null: a process alone. An optimizer that is no SkippableOptimizer
  // costs one wait for the device per step: the host must know whether to skip.
  TrainStep(std::vector<torch::Tensor> parameters, torch::optim::Optimizer& optimizer,
            LossFunction loss, StepOptions options = {},
            std::shared_ptr<Parallelism> parallel = nullptr, StageFunction stage = {});

  // Runs step number `step`, counted from 0. If the loss or any gradient is not finite, parameters
  // and optimizer stay as they are.
  StepResult run(int64_t step);

  // run() in its parts, for who does the rest, or records them: every micro-batch is staged and
  // added, the first one to no gradients, and finished after the last backward.
  void stage(int64_t step, int64_t micro_step);
  void add_micro_batch(int64_t step, int64_t micro_step);
  // Gradients become those of the global batch, are clipped and update the parameters. What .grad
  // holds afterwards is clipped or not, as the optimizer does it (SkippableOptimizer).
  StepResult finish();

  // What a checkpoint must keep of it: the loss scale, with fp16.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);  // UserError if something is missing

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const Parallelism& parallel() const { return *parallel_; }
  int64_t accumulation_steps() const { return options_.accumulation_steps; }
  bool has_stage() const { return static_cast<bool>(stage_); }
  torch::Device device() const { return device_; }

 private:
  void begin_loss_mean();
  torch::Tensor loss_mean();
  torch::Tensor norm_of(const std::vector<torch::Tensor>& gradients) const;
  void update(const torch::Tensor& skip, const torch::Tensor& norm,
              const std::vector<torch::Tensor>& gradients);

  std::vector<torch::Tensor> parameters_;
  torch::optim::Optimizer& optimizer_;
  LossFunction loss_;
  StageFunction stage_;  // may be empty
  StepOptions options_;
  std::shared_ptr<Parallelism> parallel_;
  torch::Device device_;
  std::unique_ptr<GradientScaler> scaler_;
  std::shared_ptr<UpdateInBackward> in_backward_;  // or null
  torch::Tensor losses_;     // () float32, of this rank's micro-batches so far
  torch::Tensor mean_loss_;  // of all ranks' when averaging_ is over
  c10::intrusive_ptr<c10d::Work> averaging_;
};

// What is trained, and on what: all that the loop knows about them. Only the first three must be
// given.
struct Job {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  LossFunction loss;

  // Says that `loss` may be recorded in a CUDA graph (GraphMode): from then on it is not
  // called any more, only this before each micro-batch. So `loss` looks at none but tensors that
  // stay where they are, and makes the host wait for nothing. Empty: steps are launched.
  StageFunction stage = {};

  // The learning rate of update number t (1, 2, ...), given to every parameter group; empty: left
  // alone.
  std::function<double(int64_t t)> learning_rate = {};
  // Mean loss on held-out data, in the units of `loss`; empty: no evaluation. All ranks have it, or
  // none, whoever calls it.
  std::function<double()> held_out_loss = {};
  // held_out_loss is called on all ranks, which divide the work; else on rank 0 only, unless
  // parameters are sharded (Parallelism::units).
  bool evaluates_together = false;
  // Text for samples.txt and the terminal, made before the first and after the last step; empty:
  // none. Called on rank 0, and where parameters are sharded (Parallelism::units) on all ranks.
  std::function<std::string()> sample = {};
  std::shared_ptr<Parallelism> parallel = std::make_shared<Parallelism>();

  int64_t tokens_per_step = 0;  // over all ranks; 0: not reported
  double flops_per_step = 0;    // of one rank, and
  double limit_flops_per_s =
      0;  // what one rank's machine can reach: together the share of the limit
  double bigram_loss =
      std::numeric_limits<double>::quiet_NaN();  // drawn beside the loss, if finite

  // Tells the data apart from others'; kept in checkpoints. Resuming on data with another one is
  // refused. Empty: not checked.
  std::string data_fingerprint = {};
  // The same of what held_out_loss reads; resuming on other data is noted in the log.
  std::string held_out_fingerprint = {};
  // Tells what the ids mean (Tokenizer::fingerprint); kept in checkpoints, for whoever reads or
  // writes text with the weights. Empty: not known.
  std::string tokenizer_fingerprint = {};
  std::string config_json = "{}";  // kept in checkpoints
  // Checkpoints keep the options of the optimizer's groups (rates, decay), and a run that goes on
  // gets them back. False: it has those that the optimizer was made with; for AdamW alone.
  bool keeps_options = true;
  // Called on resuming with the config of the checkpoint: throws UserError if the two do not go
  // together.
  std::function<void(const std::string& checkpoint_config_json)> check_config = {};
};

// Whether steps are recorded in CUDA graphs, after some that are launched kernel by kernel, and
// replayed from there on: no host holds up the GPU. The arithmetic is the same, to the bit.
enum class GraphMode {
  kOff,   // steps are launched
  kAuto,  // recorded where that can be; else launched, with one sentence that says why
  kOn,    // recorded, or the reason is a UserError
};
GraphMode graph_mode_by_name(const std::string& name);  // "off", "auto", "on"; else UserError

struct LoopOptions {
  std::filesystem::path run_directory;
  bool resume = false;
  int64_t steps = 1000;  // updates in all
  StepOptions step;
  GraphMode graph = GraphMode::kAuto;
  int64_t evaluate_every = 0;  // steps between evaluations; 0: before the first and after the last
  int64_t checkpointing_interval =
      0;                         // > 0: every N steps; <= 0: none but the last. The last always.
  int64_t keep_checkpoints = 2;  // newest ones kept; 0: all
  int64_t max_skipped_in_a_row =
      10;              // that many steps without finite loss and gradients end the run
  bool quiet = false;  // no progress on stderr
};

// Trains. UserError for a directory in use, a checkpoint of another module, or a loss that stays
// non-finite; MachineError when saving fails, or the directory is gone; Interrupted, after saving,
// when a signal asked for an end (SIGINT, SIGTERM, SIGHUP, SIGXCPU). Nobody who reads stderr any
// more is no reason to stop. With several ranks (job.parallel) all of them call it, with the same
// numbers of steps (UserError on all if not); rank 0 alone keeps the log and reads and writes files
// (but for each rank's share of a divided optimizer), and its result is whole.
LoopResult run(const Job& job, const LoopOptions& options);

}  // namespace flashstep
