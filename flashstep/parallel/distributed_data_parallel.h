// Data parallelism for a module of your own:
//
//   flashstep::Group group = flashstep::init();
//   flashstep::DistributedDataParallel net(my_net, group);  // a shared_ptr or module holder
//   ...
//   auto loss = criterion(net(x), y);  // takes what my_net's forward takes
//   loss.backward();                   // ends with the means over the ranks
//   optimizer.step();
//
// Every rank starts from rank 0's parameters and buffers, computes the gradients of its own part of
// the batch, and updates with their mean (S. Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", VLDB 2020). The mean over ranks is the mean over the global
// batch when the parts are of equal size; of an uneven last batch, drop the rest, or weight the
// loss of each rank by its size times the world size over the global size.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

// Whoever wraps a module of their own builds it of layers and gives it to an optimizer.
#include <torch/nn.h>
#include <torch/optim.h>

#include "flashstep/parallel/module_synchronizer.h"

namespace flashstep {

// M is the module's class (for a holder made by TORCH_MODULE, the class behind it). The wrapper is
// a module itself, with `module` as its only child: parameters, train(), eval() and saving work on
// it.
template <typename M>
class DistributedDataParallel : public torch::nn::Module {
 public:
  DistributedDataParallel(std::shared_ptr<M> module, const Group& group,
                          ReducerOptions options = {})
      : module_(register_module("module", std::move(module))),
        synchronizer_(std::make_unique<ModuleSynchronizer>(*module_, group, options)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module, const Group& group,
                          ReducerOptions options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  // The module's own forward. The outermost backward through what it returns (a tensor, or tuples,
  // vectors, maps, optionals of tensors) ends with the means of the gradients, unless it runs under
  // no_sync(). It throws what finish_gradient_synchronization() does.
  template <typename... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    synchronizer_->before_forward();
    using Result = decltype(module_->forward(std::forward<Arguments>(arguments)...));
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      Result result = module_->forward(std::forward<Arguments>(arguments)...);
      if (torch::GradMode::is_enabled()) {
        for_each_tensor(result, [this](const at::Tensor& t) { synchronizer_->watch(t); });
      }
      return result;
    }
  }
  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // GradientReducer's, after checking that the module still has the parameters that were wrapped.
  // Nothing where backward has ended with it. By hand for a loss that is made of none of forward's
  // results, and on all ranks in steps that some rank takes no part in (uneven.h).
  void finish_gradient_synchronization() { synchronizer_->finish(); }
  [[nodiscard]] GradientReducer::NoSync no_sync() { return reducer().no_sync(); }
  // no_sync() while `condition`: for the loop over micro-batches, `!is_last`.
  [[nodiscard]] std::optional<GradientReducer::NoSync> no_sync_if(bool condition) {
    if (!condition) return std::nullopt;
    return no_sync();
  }
  // Buffers (running statistics, say) are rank 0's again. They are not kept equal by themselves.
  void broadcast_buffers() { synchronizer_->broadcast_buffers(); }

  const std::shared_ptr<M>& module() const { return module_; }
  GradientReducer& reducer() { return synchronizer_->reducer(); }
  const Group& group() const { return synchronizer_->group(); }

 private:
  std::shared_ptr<M> module_;
  std::unique_ptr<ModuleSynchronizer> synchronizer_;
};

}  // namespace flashstep
