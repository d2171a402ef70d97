// How a model is spread over processes: from the config's `parallel` section to what the training
// step calls.
#pragma once

#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/model.h"
#include "flashstep/train/config.h"

namespace flashstep {

// Data parallelism as `config.wrapper` says, or full sharding as `config.shard_optimizer`: every
// rank's parameters become rank 0's. `group` is null for a single process; it and `module` must
// outlive what is returned. UserError if wrapper, number of processes and sharding do not go
// together.
struct ParallelizeOptions {
  // The 16-bit dtype that forward computes in, if it does: fully sharded parameters travel between
  // GPUs in it.
  std::optional<at::ScalarType> autocast = std::nullopt;
  // Of parameters that are fully sharded and were never written (FullyShardOptions::fill).
  PartFill fill = nullptr;
};
std::shared_ptr<Parallelism> parallelize(torch::nn::Module& module, const ParallelConfig& config,
                                         Group* group, const ParallelizeOptions& options = {});

// Whether parallelize() divides the parameters themselves.
bool shards_parameters(const ParallelConfig& config, const Group* group);

// AdamW over the groups' parameters, its state divided as `config.shard_optimizer` says, and its
// moments kept in `moments` (AdamW::keep_moments_in). `parallel` must outlive it.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamWOptions& options, const ParallelConfig& config,
    const Parallelism& parallel, at::ScalarType moments = at::kFloat);
// The same over a module's.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const torch::optim::AdamWOptions& options,
                                                        const ParallelConfig& config,
                                                        const Parallelism& parallel,
                                                        at::ScalarType moments = at::kFloat);

}  // namespace flashstep
