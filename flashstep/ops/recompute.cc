#include <array>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/differentiable_once.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr at::DeviceType kDevices[] = {at::kCPU, at::kCUDA};

// What autocast was set to on this thread; engines run backward on others. Without the cache of
// casts: what a call without a graph leaves there would have none for others either.
class Autocast {
 public:
  Autocast() {
    for (const auto device : kDevices) {
      settings_.push_back({device, at::autocast::is_autocast_enabled(device),
                           at::autocast::get_autocast_dtype(device)});
    }
  }

  // As it was, while the guards live: an array's end in the reverse order.
  std::array<std::unique_ptr<AutocastGuard>, std::size(kDevices)> again() const {
    std::array<std::unique_ptr<AutocastGuard>, std::size(kDevices)> guards;
    for (size_t i = 0; i < guards.size(); ++i) {
      const Setting& setting = settings_[i];
      guards[i] = std::make_unique<AutocastGuard>(setting.device, setting.dtype,
                                                  AutocastGuard::Cache::kOff, setting.enabled);
    }
    return guards;
  }

 private:
  struct Setting {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Setting> settings_;
};

// The states of the generators that a call on `inputs` may draw from.
class Generators {
 public:
  explicit Generators(const std::vector<Tensor>& inputs) {
    add(at::kCPU);
    for (const Tensor& input : inputs) {
      if (input.is_cuda()) {
        add(input.device());
        break;
      }
    }
  }

  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator own = generator;
      const std::lock_guard<std::mutex> lock(own.mutex());
      own.set_state(state);
    }
  }

 private:
  void add(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, Tensor>> states_;
};

// Puts the generators back as they were when it was made.
class GeneratorsGuard {
 public:
  explicit GeneratorsGuard(const std::vector<Tensor>& inputs) : before_(inputs) {}
  ~GeneratorsGuard() {
    try {
      before_.restore();
    } catch (const std::exception&) {  // while a CUDA graph is captured; the call has thrown then
    }
  }
  GeneratorsGuard(const GeneratorsGuard&) = delete;
  GeneratorsGuard& operator=(const GeneratorsGuard&) = delete;

 private:
  Generators before_;
};

// One call, from its forward pass to its backward pass.
struct Call : torch::CustomClassHolder {
  RecomputedCall call;
  Autocast autocast;
  std::optional<Generators> generators;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  // `wanted`: a tensor that wants a gradient, so that the outputs do, whatever the inputs want.
  static variable_list forward(AutogradContext* context, const Tensor& /*wanted*/,
                               at::TensorList inputs, const c10::intrusive_ptr<Call>& call) {
    context->set_materialize_grads(false);  // an output that nobody used stays unused
    context->save_for_backward(inputs.vec());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    const auto autocast = call->autocast.again();
    const std::vector<int64_t> before = versions(inputs);
    variable_list outputs = call->call(inputs.vec());
    require(
        versions(inputs) == before,
        "[recompute] expected a call that leaves its inputs as they are, got one that wrote one");
    for (const Tensor& output : outputs) {
      require(output.defined(), "[recompute] expected a call that returns tensors, got none");
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
            "[recompute] expected loss.backward(), got torch::autograd::grad or a backward with "
            "inputs: the gradients of parameters inside of the call would be lost");
    internal::refuse_create_graph("recompute");
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    variable_list inputs;
    for (const Tensor& input : saved) {
      inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
    }
    const variable_list outputs = once_more(*call, inputs);
    require(outputs.size() == gradients.size(), "[recompute] expected the call to return ",
            gradients.size(), " tensors again, got ", outputs.size());
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      require(outputs[i].sizes() == gradients[i].sizes() &&
                  outputs[i].scalar_type() == gradients[i].scalar_type(),
              "[recompute] expected output ", i, " to have shape ", gradients[i].sizes(), " and ",
              gradients[i].scalar_type(), " again, got ", outputs[i].sizes(), " and ",
              outputs[i].scalar_type());
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list results = {Tensor()};
    for (const Tensor& input : inputs) results.push_back(input.grad());
    results.emplace_back();
    return results;
  }

 private:
  // How often each was written; inference tensors do not count.
  static std::vector<int64_t> versions(at::TensorList tensors) {
    std::vector<int64_t> found;
    for (const Tensor& tensor : tensors) {
      found.push_back(tensor.is_inference() ? 0 : tensor._version());
    }
    return found;
  }

  static variable_list once_more(const Call& call, const variable_list& inputs) {
    const at::AutoGradMode with_graph(true);
    const auto autocast = call.autocast.again();
    if (!call.generators) return call.call(inputs);
    const GeneratorsGuard restored(inputs);
    call.generators->restore();
    return call.call(inputs);
  }
};

}  // namespace

std::vector<Tensor> recompute(RecomputedCall call, std::vector<Tensor> inputs,
                              RecomputeOptions options) {
  for (const Tensor& input : inputs) {
    require(input.defined(), "[recompute] expected tensors as inputs, got an undefined one");
  }
  if (!at::GradMode::is_enabled()) return call(inputs);
  auto state = c10::make_intrusive<Call>();
  state->call = std::move(call);
  if (options.same_random_numbers) state->generators.emplace(inputs);
  return Recomputed::apply(at::empty({0}).requires_grad_(), at::TensorList(inputs), state);
}

Tensor recompute(std::function<Tensor(const Tensor&)> call, const Tensor& input,
                 RecomputeOptions options) {
  const auto of_one = [call = std::move(call)](const std::vector<Tensor>& inputs) {
    return std::vector<Tensor>{call(inputs.front())};
  };
  return recompute(of_one, {input}, options).front();
}

}  // namespace flashstep
