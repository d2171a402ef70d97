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
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/train/loop_result.h"
#include "flashstep/train/recorded_step.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/step.h"

namespace flashstep {

// What is trained, and on what: all that the loop knows about them. Only the first three must be
// given.
struct Job {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  LossFunction loss;

  // Says that `loss` may be recorded in a CUDA graph (recorded_step.h): from then on it is not
  // called any more, only this before each micro-batch. So `loss` looks at none but tensors that
  // stay where they are, and makes the host wait for nothing. Empty: steps are launched.
  StageFunction stage = {};

  // The learning rate of update number t (1, 2, ...), given to every parameter group; empty: left
  // alone.
  std::function<double(int64_t t)> learning_rate = {};
  // Mean loss on held-out data, in the units of `loss`; empty: no evaluation.
  std::function<double()> held_out_loss = {};
  // held_out_loss is called on all ranks, which divide the work; else on rank 0 only.
  bool evaluates_together = false;
  // Text for samples.txt and the terminal, made before the first and after the last step; empty:
  // none.
  std::function<std::string()> sample = {};
  ParallelHooks parallel = {};

  int64_t tokens_per_step = 0;  // over all ranks; 0: not reported
  double flops_per_step = 0;    // of one rank, and
  double limit_flops_per_s =
      0;  // what one rank's machine can reach: together the share of the limit
  double bigram_loss =
      std::numeric_limits<double>::quiet_NaN();  // drawn beside the loss, if finite

  // Tells the data apart from others'; kept in checkpoints. Resuming on data with another one is
  // refused. Empty: not checked.
  std::string data_fingerprint = {};
  // Tells what the ids mean (Tokenizer::fingerprint); kept in checkpoints, for whoever reads or
  // writes text with the weights. Empty: not known.
  std::string tokenizer_fingerprint = {};
  std::string config_json = "{}";  // kept in checkpoints
  // Called on resuming with the config of the checkpoint: throws UserError if the two do not go
  // together.
  std::function<void(const std::string& checkpoint_config_json)> check_config = {};
};

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
// (but for save_checkpoint_together), and its result is whole.
LoopResult run(const Job& job, const LoopOptions& options);

// The same in a directory that the caller has locked already (null on every rank but the first);
// options.run_directory is not read.
LoopResult run(const Job& job, const LoopOptions& options, const RunDirectory* directory);

}  // namespace flashstep
