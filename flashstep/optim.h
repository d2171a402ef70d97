// Optimizers, clipping and learning rates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/ops.h"
#include "flashstep/sharded_optimizer.h"

namespace flashstep {

// Learning rate by step: linear warm-up, then half a cosine (Loshchilov and Hutter, "SGDR", 2017,
// as the course defines it), or a stable rate and a linear decay (WSD: Hu et al., "MiniCPM", 2024),
// then the lowest rate.

struct Schedule {
  double learning_rate = 1e-3;      // the highest, reached after the warm-up
  double min_learning_rate = 1e-4;  // from `cosine_steps` on
  int64_t warmup_steps = 0;         // Tw: rate = step / Tw * learning_rate before it
  int64_t cosine_steps =
      0;  // Tc: the cosine runs from Tw to Tc; 0: no cosine, constant after warm-up
  int64_t decay_steps = 0;  // Td: instead of the cosine the rate is stable until Tc - Td; 0: cosine
};

// The rate of update number `step` (the course's t). The program counts from 1: with a warm-up step
// 0 has rate 0, an update that changes nothing.
//   t < Tw:        t / Tw * max
//   Tw <= t <= Tc: min + (1 + cos(pi * (t - Tw) / (Tc - Tw))) / 2 * (max - min), or with Td
//                  min + min(1, (Tc - t) / min(Td, Tc - Tw)) * (max - min)
//   t > Tc:        min
// UserError for t < 0.
double learning_rate_at(const Schedule& schedule, int64_t step);

// Clips the gradients that `optimizer` uses to the global L2 norm `max_norm`, by the factor
// min(1, max_norm / (norm + 1e-6)) of torch's clip_grad_norm_, and returns the norm before, ()
// float32. Right wherever they lie: of a ShardedOptimizer, and of an optimizer of a fully sharded
// module's parameters, all ranks call it, and get the same bits.
// UserError unless max_norm is above 0.
torch::Tensor clip_grad_norm(torch::optim::Optimizer& optimizer, double max_norm);

// The gradients of the parameters that have one, each once: a tied tensor may come twice.
std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters);
// Those that `optimizer` uses, of which a sharded optimizer may have this rank's pieces alone.
std::vector<torch::Tensor> gradients_of(torch::optim::Optimizer& optimizer);
// Their L2 norm over all ranks, () float32, as clip_grad_norm() takes it. `gradients`:
// gradients_of(optimizer).
torch::Tensor global_norm(torch::optim::Optimizer& optimizer,
                          const std::vector<torch::Tensor>& gradients);

// Gradients are taken times min(1, max_norm / (norm + 1e-6)).
struct Clipping {
  torch::Tensor norm;  // () float32, of all gradients
  double max_norm = 1;
};

class SkippableOptimizer {
 public:
  virtual ~SkippableOptimizer() = default;
  // step(), unless `found_inf`, () float32, is 1: then nothing changes, decided on the device.
  virtual void step_unless(const torch::Tensor& found_inf) = 0;
  // The same with clipped gradients. `gradients`: those that the step uses. An optimizer that can
  // takes the factor in its update and saves a pass over them; then they stay as they were, and who
  // reads .grad afterwards sees them not clipped.
  virtual void step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                                   const std::vector<torch::Tensor>& gradients) {
    clip_to_norm(gradients, clipping.norm, clipping.max_norm);
    step_unless(found_inf);
  }
};

// Of a group of matrices that AdamW updates by Muon (K. Jordan et al., "Muon: An optimizer for
// hidden layers in neural networks", 2024), with updates as large as AdamW's (J. Liu et al., "Muon
// is scalable for LLM training", 2025). Of a parameter p (M, N) and its gradient g:
//   m = momentum * m + (1 - momentum) * g
//   o = nesterov ? momentum * m + (1 - momentum) * g : m, orthogonalized by `iterations` of
//       Newton and Schulz's: of U S V^T about U V^T
//   p = p - lr * weight_decay * p - lr * 0.2 sqrt(max(M, N)) * o
// For the weights inside of a network, not for embeddings or what makes logits. The best learning
// rate is above AdamW's, in our runs 4 times; betas and eps mean nothing:
//
//   flashstep::AdamW optimizer({{matrices, std::make_unique<flashstep::MuonOptions>(4e-3)},
//                               {the_others}}, torch::optim::AdamWOptions(1e-3));
//
// AdamW refuses a momentum outside of [0, 1), less than 1 iteration, and amsgrad.
struct MuonOptions : public torch::optim::AdamWOptions {
  explicit MuonOptions(double lr = 1e-3) : AdamWOptions(lr) {}
  // Of MuonOptions, which AdamWOptions's setters return as such, a copy.
  explicit MuonOptions(const AdamWOptions& options);
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(int64_t, iterations) = 5;

 public:
  std::unique_ptr<OptimizerOptions> clone() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};
bool operator==(const MuonOptions& a, const MuonOptions& b);

// State of one parameter. The moments have the parameter's shape and strides, and its dtype unless
// AdamW keeps them in bfloat16.
struct AdamWState : public torch::optim::OptimizerCloneableParamState<AdamWState> {
  torch::Tensor step;            // () float32: updates made so far; a skipped one does not count
  torch::Tensor exp_avg;         // m
  torch::Tensor exp_avg_sq;      // v; undefined in a group with MuonOptions
  torch::Tensor max_exp_avg_sq;  // the largest v so far; undefined without amsgrad

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2),
// a pass over each group, device and dtype. Groups with MuonOptions are updated by Muon.
//
// It is a torch::optim::Optimizer and takes torch::optim::AdamWOptions, so parameter groups,
// learning-rate schedulers, torch::save and torch::load work as with torch::optim::AdamW; either
// loads what the other saved, where no group has MuonOptions. What differs is the state: the step
// count and the learning rate are tensors on the parameters' device, because a number would be
// frozen into a captured CUDA graph, and because a step with a non-finite gradient can then be
// skipped on the device, without the host waiting to hear of it.
class AdamW : public torch::optim::Optimizer, public SkippableOptimizer {
 public:
  // For ShardedOptimizer's flat shards, whose pieces a group with MuonOptions refuses.
  static constexpr bool kUpdatesEachElementAlone = true;
  static constexpr bool kTakesGradientsOfAnyDtype = true;

  // UserError when a group has options of another class, an option is out of range (a step looks
  // again), a parameter is not a dense floating-point tensor, or one of a group with MuonOptions no
  // whole matrix.
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<torch::Tensor> parameters, torch::optim::AdamWOptions defaults = {});
  AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, const MuonOptions& defaults);
  AdamW(std::vector<torch::Tensor> parameters, const MuonOptions& defaults);

  // Updates every parameter that has a gradient, each once, in the first group that names it: a
  // module's parameters() of LibTorch names a tied tensor as often as the module does. With a
  // closure, the closure's loss is returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

  void step_unless(const torch::Tensor& found_inf) override;
  // Where clips_in_passing(), .grad stays as it was; else `gradients` are clipped in place first.
  void step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                           const std::vector<torch::Tensor>& gradients) override;
  // Whether clipping is a factor in the update of every parameter: of Muon's, and on a GPU of
  // float32 (or, with bfloat16 moments, bfloat16) without amsgrad.
  bool clips_in_passing() const;

  // Copies learning rates that changed since the last step to the device. step() does it too; a
  // captured graph must not hold the copy, so call this before capturing and before each replay.
  void refresh_learning_rates();

  // From now on the moments of float32 parameters are kept in `dtype`, float32 or bfloat16 (rounded
  // by chance); those that there are already, are rounded to the nearest. With bfloat16, parameters
  // of bfloat16 are rounded stochastically, too: what is too small for their 8 bits counts on
  // average. UserError for other dtypes, and for bfloat16 with amsgrad.
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
    torch::Tensor tensor;  // (), of the dtype that the update takes
  };
  void check_parameters() const;  // and groups
  void check_groups() const;      // which anybody may have added or changed since
  void load_with_muon(torch::serialize::InputArchive& archive);
  void round_moments();  // those that there are, to the dtype that they are kept in
  AdamWState& state_of(const torch::Tensor& parameter, size_t group);
  torch::Tensor learning_rate(size_t group, const torch::Tensor& parameter);
  void update(const torch::Tensor& found_inf, const Clipping* clipping);
  template <typename Tensors, typename Options>
  void update_group(size_t group, const Options& options, const torch::Tensor& found_inf,
                    const Clipping* clipping, std::unordered_set<void*>& seen);

  at::ScalarType moments_ = at::kFloat;  // of float32 parameters
  std::shared_ptr<void> copies_writer_ = std::make_shared<char>();
  std::map<std::pair<size_t, std::string>, LearningRate> learning_rates_;  // by group and kind
};

// The state by parameter name: "layers.0.ln1.weight/exp_avg", ".../exp_avg_sq" (not of Muon's),
// ".../step" and, with amsgrad, ".../max_exp_avg_sq". A tensor that has several names is written
// under the first.
NamedTensors optimizer_state(const AdamW& optimizer, const NamedTensors& parameters);

// The opposite. UserError for a name that no parameter has, or another shape; a parameter without
// state in `state` starts as new.
void load_optimizer_state(AdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state);

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

// What this rank keeps, a share of each name: those of all ranks together are
// the whole optimizer's state.
NamedTensors optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters);

// The opposite: takes what this rank keeps. From what another number of ranks, or one process, has
// written, own_share() makes that. UserError if something is missing.
void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& own_state);

}  // namespace flashstep
