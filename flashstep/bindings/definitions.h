// How operators are defined at the border to Python.
#pragma once

#include <string>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "flashstep/bindings/border.h"

namespace flashstep::bindings {

class Definitions {
 public:
  explicit Definitions(torch::Library& library) : library_(library) {}

  // Made of other operators, which autograd and compilers see instead.
  template <typename Function>
  void composite(const char* schema, Function function) {
    library_.def(
        schema, torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, for_python(function)));
  }
  // One for all devices, and for none; it has no gradient.
  template <typename Function>
  void plain(const char* schema, Function function) {
    library_.def(
        schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, for_python(function)));
  }
  // Computes on CPUs and GPUs; `shapes` makes results without numbers in them.
  template <typename Function, typename Shapes>
  void pass(const char* name, const char* schema, Function function, Shapes shapes) {
    library_.def((std::string(name) + schema).c_str());
    for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      library_.impl(name, torch::dispatch(key, for_python(function)));
    library_.impl(name, torch::dispatch(c10::DispatchKey::Meta, for_python(shapes)));
  }
  // The same with the gradients that `differentiable` arranges for.
  template <typename Function>
  void gradient(const char* name, Function differentiable) {
    library_.impl(name, torch::dispatch(c10::DispatchKey::Autograd, for_python(differentiable)));
  }
  void differentiable_once(const char* name) {
    library_.impl(name, torch::dispatch(c10::DispatchKey::Autograd,
                                        torch::autograd::autogradNotImplementedFallback()));
  }

 private:
  torch::Library& library_;
};

}  // namespace flashstep::bindings
