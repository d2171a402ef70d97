// Parameters, their gradients and so the optimizer's state divided between ranks (stage 3 of S.
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
// 2020): a rank keeps 1/W of each, and has the parameters of a unit (a block, say) whole only while
// the unit computes. The next unit's are gathered meanwhile.
//
//   struct Net : torch::nn::Module {
//     torch::nn::ModuleList blocks{register_module("blocks", ...)};
//     torch::Tensor forward(torch::Tensor x) {
//       for (const auto& block : *blocks) x = flashstep::run(*block->as<Block>(), x);
//       return x;
//     }
//   };
//   flashstep::FullyShardedDataParallel model(net, group, {.compute_dtype = torch::kBFloat16});
//   torch::optim::AdamW optimizer(model.parameters(), 3e-4);      // of the shards
//   loss_of(model(batch)).backward();                             // means, in the shards' .grad
//   model.clip_grad_norm(1.0);
//   optimizer.step();
//
// Between steps a divided parameter is this rank's shard, (n, 1, 1) (more ones where that
// has no more dimensions than the whole), in the dtype that it was made in; its object, its name
// and its optimizer's state stay the same. Any optimizer whose update of an element looks at that
// element alone serves. Values that a shard is given between steps, in its memory or in other
// (torch::load of what torch::save wrote on this rank), are taken; UserError, at the next forward,
// for a parameter of another shape, dtype or device. Every rank makes the same calls.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/detail/named_tensors.h"
#include "flashstep/group.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// One call of a unit: what run() and FullyShardedDataParallel are made of. Of a module that is no
// unit it does nothing.
class UnitCall {
 public:
  explicit UnitCall(const torch::nn::Module& module);
  ~UnitCall();  // after an exception: shards again
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;
  void watch_input(const at::Tensor& input);
  void watch(const at::Tensor& output);
  void end();

 private:
  std::shared_ptr<ShardedUnits> units_;  // null: no unit
  size_t unit_ = 0;
};

// module.forward(arguments...) with the module's parameters whole. A module that is no unit of a
// fully sharded one is simply called. Of a Sequential, one element after the other.
inline at::Tensor run(torch::nn::SequentialImpl& modules, at::Tensor x) {
  UnitCall whole(modules);
  for (torch::nn::AnyModule& module : modules) {
    UnitCall call(*module.ptr());
    call.watch_input(x);
    x = module.forward(x);
    call.watch(x);
    call.end();
  }
  whole.watch(x);
  whole.end();
  return x;
}
template <typename M, typename... Arguments>
requires std::is_base_of_v<torch::nn::Module, M>
decltype(auto) run(M& module, Arguments&&... arguments) {
  UnitCall call(module);
  (for_each_tensor(arguments, [&](const at::Tensor& tensor) { call.watch_input(tensor); }), ...);
  using Result = decltype(module.forward(std::forward<Arguments>(arguments)...));
  if constexpr (std::is_void_v<Result>) {
    module.forward(std::forward<Arguments>(arguments)...);
    call.end();
  } else {
    std::decay_t<Result> result = module.forward(std::forward<Arguments>(arguments)...);
    for_each_tensor(result, [&](const at::Tensor& tensor) { call.watch(tensor); });
    call.end();
    return result;
  }
}
template <typename M, typename... Arguments>
decltype(auto) run(const torch::nn::ModuleHolder<M>& module, Arguments&&... arguments) {
  return run(*module.ptr(), std::forward<Arguments>(arguments)...);
}
template <typename M, typename... Arguments>
decltype(auto) run(const std::shared_ptr<M>& module, Arguments&&... arguments) {
  return run(*module, std::forward<Arguments>(arguments)...);
}

// What FullyShardedDataParallel does without knowing the module's type.
class ShardedModule {
 public:
  ShardedModule(torch::nn::Module& module, const Group& group, FullyShardOptions options);
  ~ShardedModule();
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;
  ShardedUnits& units() const { return *units_; }
  const Group& group() const { return group_; }
  // UserError if parameters were replaced or added since wrapping, or a backward has not come to
  // its end. (Moved ones the units refuse.)
  void before_forward() const;
  // UserError that names the units whose shards were used as if they were whole.
  void after_forward() const;
  // In a handler of what a forward threw: the same, with the names of units whose shards were used,
  // or, where none are known to, may have been.
  [[noreturn]] void explain() const;

 private:
  torch::nn::Module& module_;
  const Group& group_;
  std::shared_ptr<ShardedUnits> units_;
  std::vector<std::pair<std::string, void*>> seen_;  // parameters
};

// M is the module's class (for a holder made by TORCH_MODULE, the class behind it), whose forward
// calls its units by run(). The wrapper is a module itself, with `module` as its only child. The
// group must outlive it. When it ends, the module's parameters are shards still: UserError of
// wrappers that take them for whole, and of a backward of what it has returned.
template <typename M>
class FullyShardedDataParallel : public torch::nn::Module {
 public:
  FullyShardedDataParallel(std::shared_ptr<M> module, const Group& group,
                           FullyShardOptions options = {})
      : module_(register_module("module", not_null(std::move(module), "fully sharded"))),
        sharded_(std::make_unique<ShardedModule>(*module_, group, std::move(options))) {}
  FullyShardedDataParallel(const torch::nn::ModuleHolder<M>& module, const Group& group,
                           FullyShardOptions options = {})
      : FullyShardedDataParallel(module.ptr(), group, std::move(options)) {}

  // The module's own forward; of a Sequential, one element after the other. The outermost backward
  // through what it returns (a tensor, or tuples, vectors, maps, optionals of tensors) ends with
  // the means of the gradients in the shards' .grad.
  template <typename... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    return call([&](M& module) -> decltype(auto) {
      if constexpr (std::is_same_v<M, torch::nn::SequentialImpl>) {
        // Its own forward calls elements past run().
        return run(module, std::forward<Arguments>(arguments)...);
      } else {
        return module.forward(std::forward<Arguments>(arguments)...);
      }
    });
  }
  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  // The same for another of its functions, by function(module).
  template <typename Function>
  decltype(auto) call(Function&& function) {
    sharded_->before_forward();
    using Result = std::decay_t<decltype(function(*module_))>;
    try {
      UnitCall call(*module_);
      if constexpr (std::is_void_v<Result>) {
        function(*module_);
        sharded_->after_forward();
        call.end();
        return;
      } else {
        Result result = function(*module_);
        for_each_tensor(result, [&](const at::Tensor& tensor) { call.watch(tensor); });
        sharded_->after_forward();
        call.end();
        return result;
      }
    } catch (...) {
      sharded_->explain();
    }
  }

  // By all ranks' norm, () float32, which it returns. (torch's clip_grad_norm_ knows a rank's own.)
  torch::Tensor clip_grad_norm(double max_norm) { return units().clip_grad_norm(max_norm); }
  // The optimizer in backward: from now on a backward updates a unit's shards with `optimizer`,
  // which has all of model.parameters() and must outlive the wrapper, as soon as their gradients
  // are there, and drops these, so that no gradient outlives its unit. Each backward is a step;
  // there is nothing to clip (UserError), and optimizer.step() finds nothing to do.
  void step_in_backward(torch::optim::Optimizer& optimizer) {
    units().update_in_backward(
        [&optimizer](const at::Tensor& /*not_finite*/) { optimizer.step(); });
  }
  // The parameters whole, under their names in the module. All ranks call it. `to`: the one rank
  // that gets them, on the CPU; the others nothing.
  NamedTensors gather_full_parameters(std::optional<int> to = std::nullopt) const {
    return units().gather(to);
  }
  // Takes such, of any number of ranks or of a module that is not divided.
  void load_full_parameters(const NamedTensors& whole) { units().load(whole); }
  // After a backward that an exception broke off, where all ranks had sent the same: drops all
  // gradients. All ranks call it.
  void forget_step() {
    units().abandon();
    zero_grad();
  }

  const std::shared_ptr<M>& module() const { return module_; }
  ShardedUnits& units() const { return sharded_->units(); }
  const Group& group() const { return sharded_->group(); }

 private:
  std::shared_ptr<M> module_;
  std::unique_ptr<ShardedModule> sharded_;
};

}  // namespace flashstep
