// Data parallelism of a module: what DistributedDataParallel does without knowing the module's
// type.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/error.h"

namespace flashstep {

class GradientReducer;
class Group;
struct ReducerOptions;

// What is known of a module, LibTorch's or another.
struct SynchronizedModule {
  std::function<NamedTensors()> parameters;  // as they are now, tied ones once
  std::function<std::vector<at::Tensor>()> buffers;
};
SynchronizedModule synchronized(const torch::nn::Module& module);

class ModuleSynchronizer {
 public:
  // `group`, and what `module` asks, must outlive it.
  ModuleSynchronizer(SynchronizedModule module, const Group& group, const ReducerOptions& options);
  ModuleSynchronizer(const torch::nn::Module& module, const Group& group,
                     const ReducerOptions& options)
      : ModuleSynchronizer(synchronized(module), group, options) {}
  ~ModuleSynchronizer();
  ModuleSynchronizer(const ModuleSynchronizer&) = delete;
  ModuleSynchronizer& operator=(const ModuleSynchronizer&) = delete;

  // UserError if a backward has not come to its end.
  void before_forward();
  // The outermost backward through `output` ends with finish(), except under no_sync and where it
  // gave no parameter a gradient. Only tensors that were computed can be watched.
  void watch(const at::Tensor& output);
  // GradientReducer's finish_gradient_synchronization(), after check_module(). Nothing where a
  // backward has ended with it and the gradients are still those.
  void finish();
  // UserError if parameters were moved, replaced, added, frozen or unfrozen since wrapping.
  void check_module() const;
  void broadcast_buffers();
  GradientReducer& reducer() { return *reducer_; }
  const Group& group() const { return group_; }

 private:
  struct Seen {  // of a parameter, when the module was wrapped
    std::string name;
    void* identity;
    at::Device device;
    at::ScalarType dtype;
    bool requires_grad;
  };
  class EndOfBackward;
  bool is_of_torch() const;
  // c10d's Reducer is prepared by a forward, for one backward.
  void check_begin_of_backward();
  const SynchronizedModule module_;
  const Group& group_;
  std::vector<Seen> seen_;
  std::unique_ptr<GradientReducer> reducer_;
  std::shared_ptr<EndOfBackward> end_;
  std::atomic<bool> is_prepared_ = false;  // of strategy torch, by the last forward
};

// `module`; UserError, which begins with `who`, for none.
template <typename M>
std::shared_ptr<M> not_null(std::shared_ptr<M> module, const char* who) {
  require(module != nullptr, "[", who, "] expected a module, got a null pointer");
  return module;
}

// Overwrites the tensors with rank 0's, in flat pieces; each distinct tensor once.
void broadcast_from_first(const std::vector<at::Tensor>& tensors, const Group& group);
// The same of a module's buffers. UserError, on all ranks, if they differ in number, shape, dtype
// or kind of device.
void broadcast_buffers(const std::vector<at::Tensor>& buffers, const Group& group);

// Calls `call` with each tensor in `value`: a tensor, or a tuple, pair, array, vector, map or
// optional of such, nested. Other types hold none that could be found.
template <typename T, typename Call>
void for_each_tensor(const T& value, const Call& call) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    call(value);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... part) { (for_each_tensor(part, call), ...); }, value);
  } else if constexpr (requires {
                         typename T::value_type;
                         value.begin();
                         value.end();
                       }) {
    if constexpr (!std::is_arithmetic_v<typename T::value_type>) {
      for (const auto& part : value) for_each_tensor(part, call);
    }
  } else if constexpr (requires {
                         typename T::value_type;
                         value.has_value();
                       }) {
    if (value.has_value()) for_each_tensor(*value, call);
  }
}

}  // namespace flashstep
