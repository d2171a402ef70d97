// AdamW whose moments are divided between ranks.
#pragma once

#include "flashstep/parallel/sharded_optimizer.h"
#include "flashstep/train/adamw.h"

namespace flashstep::train {

class ShardedAdamW : public ShardedOptimizer<AdamW>, public SkippableOptimizer {
 public:
  using ShardedOptimizer<AdamW>::ShardedOptimizer;
  void step_unless(const torch::Tensor& found_inf, const torch::Tensor& grad_scale = {}) override;
};

// optimizer_state of the whole optimizer, on rank 0 (on the CPU); empty on the others. All ranks
// call it.
NamedTensors gather_optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters,
                                    const comm::Group& group);

// Takes this rank's share of the whole optimizer's state.
void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state);

}  // namespace flashstep::train
