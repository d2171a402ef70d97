// An optimizer whose state is divided between ranks: each rank keeps the state of its share of the
// parameters, updates these, and sends them to the others while it updates the rest.
//
//   flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(net,
//   torch::optim::AdamWOptions(1e-3));
//   ...
//   loss.backward();                  // net is wrapped: every rank has the averaged gradients
//   optimizer.clip_grad_norm(1.0);
//   optimizer.step();
//
// (or of parameters and a group).
//
// It is a torch::optim::Optimizer: parameter groups, add_param_group, learning-rate schedulers,
// zero_grad and closures work as with the optimizer inside, which saves and loads itself as torch's
// own do (torch::optim::serialize). Every rank makes the same calls.
//
// Two ways to divide, ShardOptions::mode (what each costs: docs/parallel.md):
//   kWhole  whole parameters; for any optimizer that updates each parameter by itself
//   kFlat   equal parts of flat memory (stages 1 and 2 of S. Rajbhandari et al., "ZeRO: Memory
//           Optimizations Toward Training Trillion Parameter Models", SC 2020); for optimizers that
//           update each element by itself. Parameters move into that memory: what replaces their
//           memory later (torch::load into the module, to()) is refused at the next step. With
//           `reducer`, DistributedDataParallel's, gradients are reduced to the rank that needs them
//           and kept there only:
//
//   flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
//       net, torch::optim::AdamWOptions(1e-3), {.mode = flashstep::ShardMode::kFlat});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/detail/named_tensors.h"
#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {

class OptimizerTensors;
class ShardPlan;
struct GroupedParameter;
struct NamedPiece;
struct OwnPiece;

enum class ShardMode { kWhole, kFlat };

struct ShardOptions {
  ShardMode mode = ShardMode::kWhole;
  // kFlat: from now on gradients come divided from this reducer, all of whose parameters must be
  // the optimizer's, to one optimizer at a time. After finish_gradient_synchronization() .grad
  // holds nothing, and what looks into it (torch::nn::utils::clip_grad_norm_, say) gets a
  // UserError: clip by clip_grad_norm(). step() or this class's zero_grad() consumes the gradients.
  // A second backward before that, outside of no_sync, is refused by a wrapped module. (Strategies
  // without buckets go on giving every rank all means, which is right too.) The first step, and the
  // first of a resumed run, holds all gradients whole, for nothing is sent before the end of its
  // backward. Null: .grad holds the means on every rank.
  // kWhole: asked whether .grad holds means. Of either mode a step after backwards under no_sync
  // alone is then refused. It must outlive the optimizer.
  GradientReducer* reducer = nullptr;
  // kFlat without reducer: size of a flat tensor (MB = 10^6 bytes); else the reducer's buckets. 0,
  // there too: chosen by the parameters' size.
  double bucket_megabytes = 0;
  // A rank updates about so much of its parameters, then sends it beside the next part's update. 64
  // MB take a third of a millisecond between H200s, 10 times the start of a message.
  double part_megabytes = 64;
  // Between GPUs of one machine, under NCCL, owners write what they have updated into the others'
  // parameters by their GPUs' copy engines. false: NCCL's collectives carry it, as they do between
  // machines. The others write where a parameter lay at its first step; one that is given other
  // memory later keeps the former too.
  bool peer_copies = true;
};

class ShardedOptimizerBase : public torch::optim::Optimizer {
 public:
  ~ShardedOptimizerBase() override;

  // Calls the closure once, if there is one, and returns its loss; then updates.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // step() with another call than step() on the inner optimizer. It is made several times, each
  // time with a part of the parameters in the inner optimizer's groups.
  void update_with(const std::function<void(torch::optim::Optimizer& inner)>& update);

  // The gradients that the next step uses, to be clipped or unscaled in place: kWhole: all, on
  // every rank; kFlat: this rank's pieces, (n) each. In the dtype that they were averaged in.
  std::vector<torch::Tensor> gradients();
  // Optimizer's, and lets divided gradients go. Call it by this class: torch's is not virtual.
  void zero_grad(bool set_to_none = true);

  // Clips gradients() to the global norm `max_norm`, and returns the norm before, () float32 on the
  // parameters' device: of all gradients, the same bits on every rank. All ranks call it.
  torch::Tensor clip_grad_norm(double max_norm);
  // That norm, of `gradients`, which are gradients(). All ranks call it.
  torch::Tensor global_norm(const std::vector<torch::Tensor>& gradients) const;
  // Whether gradients() are pieces, of which every element is on one rank.
  bool gradients_are_divided() const;

  // The rank that updates `parameter`, kFlat: its first element; -1 if it is none of the
  // optimizer's (kFlat: that is trained).
  int owner(const torch::Tensor& parameter) const;
  // Elements of the trainable parameters that each rank updates, and how unequal that is: largest
  // over mean, minus 1.
  std::vector<int64_t> elements_by_rank() const;
  double imbalance() const;
  // What updated parameters travelled by last: "copies" (ShardOptions::peer_copies), "NCCL",
  // "Gloo"; "" before the first step and for a single process.
  std::string transport() const;

  // Brings all of the state to rank `to`, whose save() then writes what the optimizer inside, not
  // sharded, would write. Until the next step, the next consolidate() or load() it lies there
  // whole, on the parameters' devices. All ranks call it. What fails on rank `to` alone (memory)
  // throws there alone; the others hear of it at their next collective.
  void consolidate(int to = 0);
  // UserError on a rank that the state was not brought to.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Takes what save() wrote, on any number of ranks: each keeps its share. All ranks call it, with
  // the same archive. Sends nothing: an archive that only one rank finds wrong throws there alone.
  void load(torch::serialize::InputArchive& archive) override;

  // What the optimizer inside updates, with names: for state in files of one rank each.
  // `parameters`: names of all parameters; those that it does not know are left out.
  NamedTensors named_own(const NamedTensors& parameters) const;
  // This rank's share of `state`, of whole parameters ("NAME/KIND") or in pieces, named as
  // named_own names it.
  NamedTensors own_share(NamedTensors state, const NamedTensors& parameters) const;

  int rank() const { return group_.rank(); }
  const Group& group() const { return group_; }
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
                       std::unique_ptr<torch::optim::OptimizerOptions> defaults, const Group& group,
                       const ShardOptions& options, Factory make_inner, bool takes_any_gradients);
  void carry_options();  // learning rates and the like, to the optimizer inside

 private:
  friend class OptimizerTensors;  // checkpoints

  std::vector<NamedPiece> own_pieces(const NamedTensors& parameters) const;
  std::vector<GroupedParameter> new_parameters();
  Groups own_groups(const std::vector<OwnPiece>& pieces) const;
  void make_inner();
  void set_inner_parameters(const std::function<bool(const OwnPiece&)>& chosen);
  NamedTensors numbered_parameters() const;

  const Group& group_;
  const ShardMode mode_;
  const bool takes_any_gradients_;
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
torch::Tensor norm_over_ranks(const torch::Tensor& own_norm, const Group& group);

// True for optimizers that update each parameter from its own gradient and state. One whose update
// of a parameter looks at others (LBFGS) cannot be divided; specialize it for such.
template <typename Inner>
inline constexpr bool updates_each_parameter_alone = !std::is_same_v<Inner, torch::optim::LBFGS>;

// True for optimizers that update each element from its own gradient and state, so that a parameter
// can be cut anywhere. A class of yours says so by a member `static constexpr bool
// kUpdatesEachElementAlone = true`; specialize it for somebody else's.
template <typename Inner>
inline constexpr bool updates_each_element_alone =
    std::is_same_v<Inner, torch::optim::AdamW> || std::is_same_v<Inner, torch::optim::Adam> ||
    std::is_same_v<Inner, torch::optim::SGD> || std::is_same_v<Inner, torch::optim::RMSprop> ||
    std::is_same_v<Inner, torch::optim::Adagrad> || requires {
  requires Inner::kUpdatesEachElementAlone;
};

// True for optimizers that take a gradient of another dtype than its parameter's (set_grad_dtype)
// as it is. Others, torch's own among them, are given copies in the parameter's dtype, of one part
// of the update at a time. A class of yours says so by a member `static constexpr bool
// kTakesGradientsOfAnyDtype = true`; specialize it for somebody else's.
template <typename Inner>
inline constexpr bool takes_gradients_of_any_dtype = requires {
  requires Inner::kTakesGradientsOfAnyDtype;
};

template <typename Inner>
class ShardedOptimizer : public ShardedOptimizerBase {
 public:
  // The group must outlive the optimizer. UserError for an optimizer that cannot be divided so, for
  // shards of a fully sharded module, and, on all ranks, one that names the first parameter,
  // or group with other options, in which two ranks differ.
  template <typename Options>
  ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const Options& options, const Group& group, const ShardOptions& shards = {})
      : ShardedOptimizerBase(
            groups, std::make_unique<Options>(options), group, checked(shards),
            [options](const Groups& own) -> std::unique_ptr<Optimizer> {
              return std::make_unique<Inner>(own, options);
            },
            takes_gradients_of_any_dtype<Inner>) {
    static_assert(std::is_base_of_v<torch::optim::OptimizerOptions, Options>);
  }
  template <typename Options>
  ShardedOptimizer(std::vector<torch::Tensor> parameters, const Options& options,
                   const Group& group, const ShardOptions& shards = {})
      : ShardedOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                torch::optim::OptimizerParamGroup(std::move(parameters))},
            options, group, shards) {}
  // Of a module that is wrapped by DistributedDataParallel; kFlat: whose reducer divides the
  // gradients. The module must outlive the optimizer.
  template <typename Wrapped, typename Options>
  requires requires(Wrapped& wrapped) {
    wrapped.reducer();
    wrapped.group();
  }
  ShardedOptimizer(Wrapped& wrapped, const Options& options, ShardOptions shards = {})
      : ShardedOptimizer(wrapped.parameters(), options, wrapped.group(),
                         with_reducer(shards, wrapped.reducer())) {}

  Inner& inner() { return static_cast<Inner&>(ShardedOptimizerBase::inner()); }
  const Inner& inner() const { return static_cast<const Inner&>(ShardedOptimizerBase::inner()); }

 private:
  static ShardOptions with_reducer(ShardOptions shards, GradientReducer& reducer) {
    shards.reducer = &reducer;
    return shards;
  }
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
