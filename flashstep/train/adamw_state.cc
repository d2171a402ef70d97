// AdamW's state by the names of its parameters, as checkpoints keep it.
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/train/optimizer_options.h"
#include "flashstep/train/optimizer_tensors.h"

namespace flashstep {

using torch::Tensor;

NamedTensors optimizer_state(const AdamW& optimizer, const NamedTensors& parameters) {
  NamedTensors result;
  std::set<void*> written;
  for (const auto& [name, parameter] : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end() || !written.insert(found->first).second) continue;
    const auto& state = static_cast<const AdamWState&>(*found->second);
    result.emplace_back(name + "/exp_avg", state.exp_avg);
    if (state.exp_avg_sq.defined()) result.emplace_back(name + "/exp_avg_sq", state.exp_avg_sq);
    if (state.max_exp_avg_sq.defined())
      result.emplace_back(name + "/max_exp_avg_sq", state.max_exp_avg_sq);
    result.emplace_back(name + "/step", state.step);
  }
  return result;
}

namespace {

// By parameter.
using LoadedState = std::unordered_map<void*, std::unique_ptr<AdamWState>>;

// Those that Muon updates: the first group that names a tensor decides.
std::unordered_set<void*> matrices_of(const AdamW& optimizer) {
  std::unordered_set<void*> matrices, seen;
  for (const auto& group : optimizer.param_groups()) {
    const bool is_muon = muon_options_of(group) != nullptr;
    for (const Tensor& parameter : group.params()) {
      void* const tensor = parameter.unsafeGetTensorImpl();
      if (seen.insert(tensor).second && is_muon) matrices.insert(tensor);
    }
  }
  return matrices;
}

LoadedState parse_state(const AdamW& optimizer, const NamedTensors& parameters,
                        const NamedTensors& state) {
  torch::NoGradGuard no_grad;
  std::unordered_map<std::string, Tensor> by_name(parameters.begin(), parameters.end());
  std::unordered_map<std::string, std::unique_ptr<AdamWState>> loaded;
  for (const auto& [key, tensor] : state) {
    const size_t slash = key.rfind('/');
    const std::string name = key.substr(0, slash),
                      kind = slash == key.npos ? "" : key.substr(slash + 1);
    const auto parameter = by_name.find(name);
    require_tensor(name, parameter != by_name.end(),
                   "[resume] the checkpoint holds optimizer state for ", name,
                   ", which the module does not have");
    auto& entry = loaded[name];
    if (!entry) entry = std::make_unique<AdamWState>();
    Tensor* slot = kind == "exp_avg"          ? &entry->exp_avg
                   : kind == "exp_avg_sq"     ? &entry->exp_avg_sq
                   : kind == "max_exp_avg_sq" ? &entry->max_exp_avg_sq
                   : kind == "step"           ? &entry->step
                                              : nullptr;
    require_tensor(name, slot != nullptr,
                   "[resume] expected optimizer state named exp_avg, exp_avg_sq or step, got ",
                   key);
    if (kind == "step") {
      *slot = tensor.to(parameter->second.device(), at::kFloat, false, /*copy=*/true).reshape({});
      continue;
    }
    require_tensor(name, tensor.sizes() == parameter->second.sizes(), "[resume] expected ", key,
                   " of shape ", parameter->second.sizes(), ", got ", tensor.sizes());
    const auto dtype = optimizer.moment_dtype(parameter->second);
    *slot =
        at::empty_like(parameter->second, parameter->second.options().dtype(dtype)).copy_(tensor);
  }
  LoadedState result;
  const auto matrices = matrices_of(optimizer);
  for (auto& [name, entry] : loaded) {
    const bool is_muon = matrices.contains(by_name.at(name).unsafeGetTensorImpl());
    require_tensor(name,
                   entry->step.defined() && entry->exp_avg.defined() &&
                       entry->exp_avg_sq.defined() == !is_muon,
                   "[resume] expected ",
                   is_muon ? "Muon's step and exp_avg" : "step, exp_avg and exp_avg_sq", " of ",
                   name, ", got others");
    result[by_name.at(name).unsafeGetTensorImpl()] = std::move(entry);
  }
  return result;
}

}  // namespace

void load_optimizer_state(AdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state) {
  LoadedState loaded = parse_state(optimizer, parameters, state);
  optimizer.state().clear();
  for (auto& [parameter, entry] : loaded) optimizer.state()[parameter] = std::move(entry);
}

void add_optimizer_state(AdamW& optimizer, const NamedTensors& parameters,
                         const NamedTensors& state) {
  LoadedState loaded = parse_state(optimizer, parameters, state);
  for (auto& [parameter, entry] : loaded) optimizer.state()[parameter] = std::move(entry);
}

}  // namespace flashstep
