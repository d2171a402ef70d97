// AdamW whose moments are divided between ranks.
#pragma once

#include "flashstep/parallel/sharded_optimizer.h"
#include "flashstep/train/adamw.h"

namespace flashstep {

template <>
inline constexpr bool updates_each_element_alone<train::AdamW> = true;

namespace train {

class ShardedAdamW : public ShardedOptimizer<AdamW>, public SkippableOptimizer {
 public:
  using ShardedOptimizer<AdamW>::ShardedOptimizer;
  void step_unless(const torch::Tensor& found_inf, const torch::Tensor& grad_scale = {}) override;
};

// What this rank keeps, under the names of parallel/state_pieces.h: those of all ranks together are
// the whole optimizer's state.
NamedTensors optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters);

// Takes this rank's share of the whole optimizer's state, which another number of ranks, or one
// process, may have written. UserError if something is missing.
void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state);

}  // namespace train
}  // namespace flashstep
