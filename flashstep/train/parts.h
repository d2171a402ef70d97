// What a config says is trained: the process, the model, how it is spread over ranks, the
// optimizer.
#pragma once

#include <memory>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/model.h"
#include "flashstep/parallel/stored_tensors.h"
#include "flashstep/train/config.h"

namespace flashstep {

// Threads, determinism, the generators' seed: LibTorch's settings, of the whole process.
void set_up_process(const TrainConfig& config);

// Segments that grow: what a step frees is one piece again, whatever sizes the next one asks for.
// A recorded step of xl then takes 2 GiB less of a GPU, and that of 8B fits beside the launched
// ones (reports/full_sharding_h200). Before any memory is taken; whoever sets the allocator's
// variable decides.
void let_memory_grow(torch::Device device);

StepOptions step_options(const Config& config);

struct TrainedParts {
  Transformer model;
  std::shared_ptr<Parallelism> parallel;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// What config.optimizer.kind says: all parameters, or those that Muon updates, the blocks'
// matrices, then the others.
std::vector<torch::optim::OptimizerParamGroup> optimizer_groups(const Transformer& model,
                                                                const Config& config);

// `config`: resolved; `group` null: a process alone. `weights`: those of train.init_from, the same
// on all ranks (share_tensors); empty: new ones. Parameters that ranks are to divide are not
// written, and take no memory, before each rank has its shards. UserError (AgreedError) for weights
// of another model.
TrainedParts make_parts(const Config& config, torch::Device device, Group* group,
                        const StoredTensors& weights = {});

}  // namespace flashstep
