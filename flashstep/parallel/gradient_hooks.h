// Being told when autograd has added to a parameter's gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flashstep {

// Calls fired(i), in the thread that runs backward, each time parameters[i].grad has been added to.
// A parameter has one place for such a hook; one that stood there before is called first, and takes
// the place again when this object ends. No node of the graph is held: graph capture needs nodes
// that are made anew.
class GradientHooks {
 public:
  // `averages`: what is fired averages the gradient, which one alone may do: a backward that comes
  // to two such is a UserError.
  GradientHooks(std::vector<at::Tensor> parameters, std::function<void(int64_t)> fired,
                bool averages = false);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<std::function<void(int64_t)>> fired_;  // emptied at the end: hooks outlive it
};

}  // namespace flashstep
