// An optimizer whose state is divided between ranks: each rank keeps the state of its share of the
// parameters, updates these, and sends them to the others (stage 1 of S. Rajbhandari et al., "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, with whole parameters).
//
//   flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
//       net.parameters(), torch::optim::AdamWOptions(1e-3), group);
//   ...
//   net.finish_gradient_synchronization();   // every rank has the averaged gradients
//   optimizer.step();
//
// It is a torch::optim::Optimizer: parameter groups, add_param_group, learning-rate schedulers,
// zero_grad and closures work as with the optimizer inside. Every rank makes the same calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "flashstep/base/error.h"
#include "flashstep/comm/group.h"

namespace flashstep {
namespace parallel {

class ShardedOptimizerBase : public torch::optim::Optimizer {
 public:
  // Calls the closure once, if there is one, and returns its loss; then updates.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // step() with another call than step() on the inner optimizer.
  void update_with(const std::function<void(torch::optim::Optimizer& inner)>& update);

  // The rank that updates `parameter`; -1 if it is none of the optimizer's.
  int owner(const torch::Tensor& parameter) const;
  // Elements of the trainable parameters that each rank updates, and how unequal that is: largest
  // over mean, minus 1.
  const std::vector<int64_t>& elements_by_rank() const { return loads_; }
  double imbalance() const;

  // Brings all of the state to rank `to`, whose save() then writes what the optimizer inside, not
  // sharded, would write. Holds until the next step. All ranks call it.
  void consolidate(int to = 0);
  // UserError on a rank that the state was not brought to.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Takes what save() wrote, on any number of ranks: each keeps its share. All ranks call it.
  void load(torch::serialize::InputArchive& archive) override;

  int rank() const { return group_.rank(); }
  // The optimizer inside; its groups hold the parameters that this rank updates.
  torch::optim::Optimizer& inner() { return *inner_; }
  const torch::optim::Optimizer& inner() const { return *inner_; }
  // Adopts parameters and groups that were added since; step() does it first.
  void reconcile();

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;
  ShardedOptimizerBase(const Groups& groups,
                       std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                       const comm::Group& group, Factory make_inner);

 private:
  Groups groups_of(int rank) const;
  void carry_options();
  void send_parameters();
  std::unique_ptr<torch::optim::Optimizer> gather_shards(int to);

  const comm::Group& group_;
  Factory make_inner_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;
  std::unordered_map<void*, int> owners_;
  std::vector<int64_t> loads_;  // elements, by rank
};

// Sends tensors[i] from rank owners[i] to all others; each is overwritten in place. All owners send
// at once.
void exchange(const std::vector<torch::Tensor>& tensors, const std::vector<int>& owners,
              const comm::Group& group);

}  // namespace parallel

// True for optimizers that update each parameter from its own gradient and state. One whose update
// of a parameter looks at others (LBFGS) cannot be divided; specialize it for such.
template <typename Inner>
inline constexpr bool updates_each_parameter_alone = !std::is_same_v<Inner, torch::optim::LBFGS>;

template <typename Inner>
class ShardedOptimizer : public parallel::ShardedOptimizerBase {
 public:
  // The group must outlive the optimizer. UserError for an optimizer that cannot be divided.
  template <typename Options>
  ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const Options& options, const comm::Group& group)
      : ShardedOptimizerBase(groups, std::make_unique<Options>(options), group,
                             [options](const Groups& own) -> std::unique_ptr<Optimizer> {
                               return std::make_unique<Inner>(own, options);
                             }) {
    static_assert(std::is_base_of_v<torch::optim::OptimizerOptions, Options>);
    require(updates_each_parameter_alone<Inner>,
            "[ShardedOptimizer] expected an optimizer that updates each parameter by itself, got "
            "one whose update of a parameter depends on all others");
  }
  template <typename Options>
  ShardedOptimizer(std::vector<torch::Tensor> parameters, const Options& options,
                   const comm::Group& group)
      : ShardedOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                torch::optim::OptimizerParamGroup(std::move(parameters))},
            options, group) {}

  Inner& inner() { return static_cast<Inner&>(ShardedOptimizerBase::inner()); }
  const Inner& inner() const { return static_cast<const Inner&>(ShardedOptimizerBase::inner()); }
};

}  // namespace flashstep
