// Data parallelism of a module: what DistributedDataParallel does without knowing the module's
// type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "flashstep/parallel/gradient_reducer.h"

namespace flashstep::parallel {

class ModuleSynchronizer {
 public:
  ModuleSynchronizer(const torch::nn::Module& module, const comm::Group& group,
                     ReducerOptions options);
  // UserError if a backward was not finished.
  void before_forward(const torch::nn::Module& module);
  // UserError if parameters were moved, replaced, added, frozen or unfrozen since wrapping.
  void check_module(const torch::nn::Module& module) const;
  void broadcast_buffers(const torch::nn::Module& module);
  GradientReducer& reducer() { return *reducer_; }

 private:
  struct Seen {  // of a parameter, when the module was wrapped
    std::string name;
    void* identity;
    at::Device device;
    at::ScalarType dtype;
    bool requires_grad;
  };
  const comm::Group& group_;
  std::vector<Seen> seen_;
  std::unique_ptr<GradientReducer> reducer_;
};

// Overwrites the tensors with rank 0's, in flat pieces; each distinct tensor once.
void broadcast_from_first(const std::vector<at::Tensor>& tensors, const comm::Group& group);

}  // namespace flashstep::parallel
