// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2): one
// call of ops/adamw.h per group, device and dtype.
//
// It is a torch::optim::Optimizer and takes torch::optim::AdamWOptions, so parameter groups,
// learning-rate schedulers, torch::save and torch::load work as with torch::optim::AdamW. What
// differs is the state: the step count and the learning rate are tensors on the parameters' device,
// because a number would be frozen into a captured CUDA graph, and because a step with a non-finite
// gradient can then be skipped on the device, without the host waiting to hear of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "flashstep/train/safetensors.h"
#include "flashstep/train/skippable.h"

namespace flashstep {

// State of one parameter. The moments have the parameter's shape and strides, and its dtype unless
// AdamW keeps them in bfloat16.
struct AdamWState : public torch::optim::OptimizerCloneableParamState<AdamWState> {
  torch::Tensor step;            // () float32: updates made so far; a skipped one does not count
  torch::Tensor exp_avg;         // m
  torch::Tensor exp_avg_sq;      // v
  torch::Tensor max_exp_avg_sq;  // the largest v so far; undefined without amsgrad

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class AdamW : public torch::optim::Optimizer, public SkippableOptimizer {
 public:
  static constexpr bool kUpdatesEachElementAlone = true;  // for ShardedOptimizer's flat shards
  static constexpr bool kTakesGradientsOfAnyDtype = true;

  // UserError when an option is out of range or a parameter is not a dense floating-point tensor.
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<torch::Tensor> parameters, torch::optim::AdamWOptions defaults = {});

  // Updates every parameter that has a gradient, each once, in the first group that names it: a
  // module's parameters() of LibTorch names a tied tensor as often as the module does. With a
  // closure, the closure's loss is returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

  void step_unless(const torch::Tensor& found_inf) override;
  // Where clips_in_passing(), .grad stays as it was; else `gradients` are clipped in place first.
  void step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                           const std::vector<torch::Tensor>& gradients) override;
  // Whether clipping is a factor in the update of every parameter: on a GPU, of float32, without
  // amsgrad.
  bool clips_in_passing() const;

  // Copies learning rates that changed since the last step to the device. step() does it too; a
  // captured graph must not hold the copy, so call this before capturing and before each replay.
  void refresh_learning_rates();

  // From now on the moments of float32 parameters are kept in `dtype`, float32 or bfloat16 (rounded
  // by chance: ops/adamw.h); those that there are already, are rounded to the nearest. UserError
  // for other dtypes, and for bfloat16 with amsgrad.
  void keep_moments_in(at::ScalarType dtype);
  // Of the moments of such a parameter.
  at::ScalarType moment_dtype(const torch::Tensor& parameter) const;

  // Makes the state of every trainable parameter now instead of at its first gradient (graph
  // capture, and equal memory from the first step on).
  void allocate_state();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct LearningRate {
    double value;
    torch::Tensor tensor;  // () float32
  };
  void round_moments();  // those that there are, to the dtype that they are kept in
  AdamWState& state_of(const torch::Tensor& parameter, bool amsgrad);
  torch::Tensor learning_rate(size_t group, torch::Device device);
  void update(const torch::Tensor& found_inf, const Clipping* clipping);

  at::ScalarType moments_ = at::kFloat;                                    // of float32 parameters
  std::shared_ptr<void> copies_writer_ = std::make_shared<char>();         // ops/compute_copy.h
  std::map<std::pair<size_t, std::string>, LearningRate> learning_rates_;  // by group and device
};

// The state by parameter name: "layers.0.ln1.weight/exp_avg", ".../exp_avg_sq", ".../step" and,
// with amsgrad, ".../max_exp_avg_sq". A tensor that has several names is written under the first.
NamedTensors optimizer_state(const AdamW& optimizer, const NamedTensors& parameters);

// The opposite. UserError for a name that no parameter has, or another shape; a parameter without
// state in `state` starts as new.
void load_optimizer_state(AdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state);

}  // namespace flashstep
