// How a model is spread over processes: one ordered recipe, from the config's `parallel` section to
// the hooks that the training step calls.
#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/train/config.h"

namespace flashstep {

// Wraps `module` as `config.wrapper` says: every rank's parameters become rank 0's. `group`, null
// for a single process, must outlive the hooks. UserError if wrapper and number of processes do not
// go together.
ParallelHooks parallelize(torch::nn::Module& module, const ParallelConfig& config, Group* group);

// AdamW over the module's parameters, its state divided as `config.shard_optimizer` says, and its
// moments kept in `moments` (AdamW::keep_moments_in). Where
// gradients are divided too, hooks.gradients and hooks.norm are set to this rank's and to the norm
// over all ranks. What `hooks` came with (parallelize) must outlive the optimizer.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const torch::optim::AdamWOptions& options,
                                                        const ParallelConfig& config,
                                                        ParallelHooks& hooks,
                                                        at::ScalarType moments = at::kFloat);

}  // namespace flashstep
