// How a model is spread over processes: one ordered recipe, from the config's `parallel` section to
// the hooks that the training step calls.
#pragma once

#include <torch/torch.h>

#include "flashstep/train/config.h"
#include "flashstep/train/step.h"

namespace flashstep::train {

// Wraps `module` as `config.wrapper` says. UserError for a wrapper that is not there.
ParallelHooks parallelize(torch::nn::Module& module, const ParallelConfig& config);

}  // namespace flashstep::train
