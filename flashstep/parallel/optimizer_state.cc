#include "flashstep/parallel/optimizer_state.h"

#include <map>
#include <sstream>
#include <utility>

#include "flashstep/base/error.h"

namespace flashstep::parallel {
namespace {

using torch::Tensor;
using torch::optim::OptimizerParamState;

using Kinds = std::map<std::string, c10::IValue>;

torch::serialize::InputArchive reopened(const torch::serialize::OutputArchive& archive) {
  std::ostringstream out;
  const_cast<torch::serialize::OutputArchive&>(archive).save_to(out);
  const std::string bytes = out.str();
  torch::serialize::InputArchive result;
  result.load_from(bytes.data(), bytes.size());
  return result;
}

Kinds kinds_of(const OptimizerParamState& state) {
  torch::serialize::OutputArchive written;
  state.serialize(written);
  torch::serialize::InputArchive archive = reopened(written);
  Kinds kinds;
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (archive.try_read(key, value)) kinds[key] = value;
  }
  return kinds;
}

// Undefined for what is no number and no tensor (LBFGS keeps lists).
Tensor as_tensor(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isInt()) return torch::full({}, value.toInt(), torch::kLong);
  if (value.isDouble()) return torch::full({}, value.toDouble(), torch::kDouble);
  return {};
}

c10::IValue as_value(const Tensor& tensor, const c10::IValue& form) {
  if (form.isInt()) return tensor.item<int64_t>();
  if (form.isDouble()) return tensor.item<double>();
  return tensor;
}

std::unique_ptr<OptimizerParamState> make_state(const OptimizerParamState& form, Kinds kinds) {
  torch::serialize::OutputArchive written;
  for (const auto& [key, value] : kinds) written.write(key, value);
  torch::serialize::InputArchive archive = reopened(written);
  auto state = form.clone();
  state->serialize(archive);
  return state;
}

}  // namespace

NamedTensors read_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters) {
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    for (const auto& [kind, value] : kinds_of(*found->second)) {
      const Tensor tensor = as_tensor(value);
      if (tensor.defined()) result.emplace_back(name + "/" + kind, tensor);
    }
  }
  return result;
}

void write_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                 const NamedTensors& state, const OptimizerParamState& form) {
  const Kinds blank = kinds_of(form);
  std::map<std::string, Kinds> by_name;
  for (const auto& [text, tensor] : state) {
    const size_t slash = text.rfind('/');
    const std::string name = text.substr(0, slash), kind = text.substr(slash + 1);
    const auto kind_form = blank.find(kind);
    require(kind_form != blank.end(),
            "[ShardedOptimizer] expected state that the optimizer inside ", "knows, got ", text);
    by_name.try_emplace(name, blank).first->second[kind] = as_value(tensor, kind_form->second);
  }
  optimizer.state().clear();
  for (const auto& [name, parameter] : parameters) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    for (auto& [kind, value] : found->second) {
      if (value.isTensor() && value.toTensor().defined()) {
        value = value.toTensor().to(parameter.device());
      }
    }
    optimizer.state()[parameter.unsafeGetTensorImpl()] = make_state(form, std::move(found->second));
  }
}

}  // namespace flashstep::parallel
