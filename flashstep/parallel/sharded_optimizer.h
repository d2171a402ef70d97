// An optimizer whose state is divided between ranks: each rank keeps the state of its share of the
// parameters, updates these, and sends them to the others while it updates the rest.
//
//   flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
//       net.parameters(), torch::optim::AdamWOptions(1e-3), group);
//   ...
//   net.finish_gradient_synchronization();   // every rank has the averaged gradients
//   optimizer.step();
//
// It is a torch::optim::Optimizer: parameter groups, add_param_group, learning-rate schedulers,
// zero_grad and closures work as with the optimizer inside. Every rank makes the same calls.
//
// Two ways to divide, ShardOptions::mode (what each costs: docs/parallel.md):
//   kWhole  whole parameters; for any optimizer that updates each parameter by itself
//   kFlat   equal parts of flat memory (stages 1 and 2 of S. Rajbhandari et al., "ZeRO: Memory
//           Optimizations Toward Training Trillion Parameter Models", SC 2020); for optimizers that
//           update each element by itself. With `reducer`, DistributedDataParallel's, gradients are
//           reduced to the rank that needs them and kept there only:
//
//   flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
//       net.parameters(), torch::optim::AdamWOptions(1e-3), group,
//       {.mode = flashstep::ShardMode::kFlat, .reducer = &net.reducer()});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "flashstep/base/error.h"
#include "flashstep/comm/group.h"
#include "flashstep/parallel/gradient_reducer.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/parallel/shard_plan.h"

namespace flashstep {

enum class ShardMode { kWhole, kFlat };

struct ShardOptions {
  ShardMode mode = ShardMode::kWhole;
  // kFlat: from now on gradients come divided from this reducer, all of whose parameters must be
  // the optimizer's. After finish_gradient_synchronization() .grad is undefined everywhere; clip by
  // gradients() and norm_over_ranks(), not by functions that look at .grad; step() consumes the
  // gradients. (Strategies without buckets go on giving every rank all means, which is right too.)
  // The reducer must outlive the optimizer. Null: .grad holds the means on every rank.
  GradientReducer* reducer = nullptr;
  // kFlat without reducer: size of a flat tensor (MB = 10^6 bytes); else the reducer's buckets.
  double bucket_megabytes = 25;
  // A rank updates about so much of its parameters, then sends it beside the next part's update. 64
  // MB take a third of a millisecond between H200s, 10 times the start of a message.
  double part_megabytes = 64;
};

namespace parallel {

class ShardedOptimizerBase : public torch::optim::Optimizer {
 public:
  // Calls the closure once, if there is one, and returns its loss; then updates.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // step() with another call than step() on the inner optimizer. It is made several times, each
  // time with a part of the parameters in the inner optimizer's groups.
  void update_with(const std::function<void(torch::optim::Optimizer& inner)>& update);

  // The gradients that the next step uses, to be clipped or unscaled in place: kWhole: all, on
  // every rank; kFlat: this rank's pieces, (n) each.
  std::vector<torch::Tensor> gradients();
  // Whether gradients() are pieces, of which every element is on one rank.
  bool gradients_are_divided() const { return plan_->divided(); }

  // The rank that updates `parameter`, kFlat: its first element; -1 if it is none of the
  // optimizer's (kFlat: that is trained).
  int owner(const torch::Tensor& parameter) const { return plan_->owner(parameter); }
  // Elements of the trainable parameters that each rank updates, and how unequal that is: largest
  // over mean, minus 1.
  std::vector<int64_t> elements_by_rank() const { return plan_->elements_by_rank(); }
  double imbalance() const;

  // Brings all of the state to rank `to`, whose save() then writes what the optimizer inside, not
  // sharded, would write. Holds until the next step. All ranks call it.
  void consolidate(int to = 0);
  // UserError on a rank that the state was not brought to.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Takes what save() wrote, on any number of ranks: each keeps its share. All ranks call it.
  void load(torch::serialize::InputArchive& archive) override;

  // What the optimizer inside updates, with names: for state in files of one rank each
  // (state_pieces.h). `parameters`: names of all parameters; those that it does not know are left
  // out.
  NamedTensors named_own(const NamedTensors& parameters) const;
  // Of the state of whole parameters ("NAME/KIND") this rank's share, named as named_own names it.
  NamedTensors own_share(const NamedTensors& whole_state, const NamedTensors& parameters) const;

  int rank() const { return group_.rank(); }
  const comm::Group& group() const { return group_; }
  // The optimizer inside; its groups hold what this rank updates: kWhole: parameters, kFlat: pieces
  // of them, (n) each.
  torch::optim::Optimizer& inner() { return *inner_; }
  const torch::optim::Optimizer& inner() const { return *inner_; }
  // Adopts parameters and groups that were added since; step() does it first.
  void reconcile();

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;
  ShardedOptimizerBase(const Groups& groups,
                       std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                       const comm::Group& group, const ShardOptions& options, Factory make_inner);

 private:
  std::vector<GroupedParameter> new_parameters();
  Groups own_groups(const std::vector<OwnPiece>& pieces) const;
  void carry_options();
  void set_inner_parameters(const std::function<bool(const OwnPiece&)>& chosen);
  NamedTensors numbered_parameters() const;
  std::unique_ptr<torch::optim::OptimizerParamState> blank_state() const;

  const comm::Group& group_;
  const ShardMode mode_;
  Factory make_inner_;
  std::unique_ptr<ShardPlan> plan_;
  std::vector<OwnPiece> own_;
  std::unordered_set<void*> known_;  // parameters that the plan has
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;
};

// The L2 norm over all ranks' gradients where each element is on one rank: sqrt of the sum over the
// ranks of own_norm^2, () of own_norm's dtype and device, the same bits on every rank and in every
// run. The sum is in float64 in the order of ranks. All ranks call it.
torch::Tensor norm_over_ranks(const torch::Tensor& own_norm, const comm::Group& group);

}  // namespace parallel

// True for optimizers that update each parameter from its own gradient and state. One whose update
// of a parameter looks at others (LBFGS) cannot be divided; specialize it for such.
template <typename Inner>
inline constexpr bool updates_each_parameter_alone = !std::is_same_v<Inner, torch::optim::LBFGS>;

// True for optimizers that update each element from its own gradient and state, so that a parameter
// can be cut anywhere. Specialize it for yours.
template <typename Inner>
inline constexpr bool updates_each_element_alone =
    std::is_same_v<Inner, torch::optim::AdamW> || std::is_same_v<Inner, torch::optim::Adam> ||
    std::is_same_v<Inner, torch::optim::SGD> || std::is_same_v<Inner, torch::optim::RMSprop> ||
    std::is_same_v<Inner, torch::optim::Adagrad>;

template <typename Inner>
class ShardedOptimizer : public parallel::ShardedOptimizerBase {
 public:
  // The group must outlive the optimizer. UserError for an optimizer that cannot be divided so.
  template <typename Options>
  ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const Options& options, const comm::Group& group,
                   const ShardOptions& shards = {})
      : ShardedOptimizerBase(groups, std::make_unique<Options>(options), group, checked(shards),
                             [options](const Groups& own) -> std::unique_ptr<Optimizer> {
                               return std::make_unique<Inner>(own, options);
                             }) {
    static_assert(std::is_base_of_v<torch::optim::OptimizerOptions, Options>);
  }
  template <typename Options>
  ShardedOptimizer(std::vector<torch::Tensor> parameters, const Options& options,
                   const comm::Group& group, const ShardOptions& shards = {})
      : ShardedOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                torch::optim::OptimizerParamGroup(std::move(parameters))},
            options, group, shards) {}

  Inner& inner() { return static_cast<Inner&>(ShardedOptimizerBase::inner()); }
  const Inner& inner() const { return static_cast<const Inner&>(ShardedOptimizerBase::inner()); }

 private:
  static const ShardOptions& checked(const ShardOptions& shards) {
    require(updates_each_parameter_alone<Inner>,
            "[ShardedOptimizer] expected an optimizer that updates each parameter by itself, got "
            "one whose update of a parameter depends on all others");
    require(shards.mode == ShardMode::kWhole || updates_each_element_alone<Inner>,
            "[ShardedOptimizer] expected an optimizer that updates each element by itself for flat "
            "shards, got one that is not known to (updates_each_element_alone); whole parameters "
            "can be divided");
    return shards;
  }
};

}  // namespace flashstep
