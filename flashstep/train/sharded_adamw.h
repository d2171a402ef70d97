// AdamW whose moments are divided between ranks.
#pragma once

#include "flashstep/parallel/sharded_optimizer.h"
#include "flashstep/train/adamw.h"

namespace flashstep {

class ShardedAdamW : public ShardedOptimizer<AdamW>, public SkippableOptimizer {
 public:
  using ShardedOptimizer<AdamW>::ShardedOptimizer;
  void step_unless(const torch::Tensor& found_inf) override;
  void step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                           const std::vector<torch::Tensor>& gradients) override;
  // AdamW's, of what this rank updates.
  void refresh_learning_rates();
  void allocate_state() { inner().allocate_state(); }
  void keep_moments_in(at::ScalarType dtype);
  void load(torch::serialize::InputArchive& archive) override;

 private:
  at::ScalarType moments_ = at::kFloat;
};

// What this rank keeps, under the names of parallel/state_pieces.h: those of all ranks together are
// the whole optimizer's state.
NamedTensors optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters);

// The opposite: takes what this rank keeps. From what another number of ranks, or one process, has
// written, own_share() makes that. UserError if something is missing.
void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& own_state);

}  // namespace flashstep
