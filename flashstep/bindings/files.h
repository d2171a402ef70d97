// A checkpoint that Python reads tensor by tensor.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/custom_class.h>

#include "flashstep/train/stored_checkpoint.h"

namespace flashstep::bindings {

class CheckpointFiles : public torch::CustomClassHolder {
 public:
  explicit CheckpointFiles(StoredCheckpoint stored) : stored_(std::move(stored)) {}
  int64_t step() { return stored_.step; }
  std::string state_json() { return stored_.state_json; }
  std::vector<std::string> names(bool of_model) {
    std::vector<std::string> names;
    for (const StoredTensor& tensor : tensors(of_model)) names.push_back(tensor.name);
    return names;
  }
  at::Tensor form(bool of_model, int64_t index) { return tensors(of_model).at(index).form; }
  at::Tensor read(bool of_model, int64_t index) { return tensors(of_model).at(index).whole(); }
  // Of one parameter's state what the optimizer's tensors `indices` hold, whole or the pieces that
  // ranks have, as that of the whole. names: "NAME/KIND" or "NAME@BEGIN:END/KIND" of each.
  at::Tensor read_joined(const std::string& name, const at::Tensor& parameter,
                         std::vector<std::string> names, std::vector<int64_t> indices);
  const StoredTensors& tensors(bool of_model) const {
    return (of_model ? stored_.model : stored_.optimizer).tensors;
  }

 private:
  const StoredCheckpoint stored_;
};

}  // namespace flashstep::bindings
