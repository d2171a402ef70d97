#include "flashstep/train/shared_checkpoint.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

namespace flashstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Names, types and shapes, from which a receiver makes the tensors that it receives into.
OrderedJson describe(const NamedTensors& tensors) {
  OrderedJson result = OrderedJson::array();
  for (const auto& [name, tensor] : tensors) {
    result.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return result;
}

NamedTensors empty_like(const OrderedJson& description) {
  NamedTensors tensors;
  for (const OrderedJson& entry : description) {
    tensors.emplace_back(entry[0].get<std::string>(),
                         at::empty(entry[2].get<std::vector<int64_t>>(),
                                   static_cast<at::ScalarType>(entry[1].get<int>())));
  }
  return tensors;
}

// On rank 0 sends, on the others receives.
void broadcast(NamedTensors& tensors, const Group& group) {
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.cpu().contiguous();
    group.broadcast(tensor, 0);
  }
}

// The parameter whose state bears this name; the name itself, if there is none.
std::string parameter_of(const std::string& text, const std::unordered_set<std::string>& names) {
  for (size_t end = text.find_last_of("/@"); end != std::string::npos && end > 0;
       end = text.find_last_of("/@", end - 1)) {
    if (names.contains(text.substr(0, end))) return text.substr(0, end);
  }
  return text;
}

// In the order in which parameters come first.
std::vector<NamedTensors> by_parameter(NamedTensors state, const NamedTensors& parameters) {
  std::unordered_set<std::string> names;
  for (const auto& [name, parameter] : parameters) names.insert(name);
  std::unordered_map<std::string, size_t> places;
  std::vector<NamedTensors> parts;
  for (auto& entry : state) {
    const auto [place, is_new] = places.try_emplace(parameter_of(entry.first, names), parts.size());
    if (is_new) parts.emplace_back();
    parts[place->second].push_back(std::move(entry));
  }
  return parts;
}

}  // namespace

std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const Group& group) {
  OrderedJson description;
  if (group.is_first() && checkpoint) {
    description = {{"step", checkpoint->step},
                   {"state", checkpoint->state_json},
                   {"model", describe(checkpoint->model)}};
  }
  description = OrderedJson::parse(group.broadcast(description.dump(), 0));
  if (description.is_null()) return std::nullopt;
  if (!group.is_first()) {
    checkpoint.emplace();
    checkpoint->step = description.at("step");
    checkpoint->state_json = description.at("state");
    checkpoint->model = empty_like(description.at("model"));
  }
  broadcast(checkpoint->model, group);
  return checkpoint;
}

NamedTensors share_state(NamedTensors state, const NamedTensors& parameters, const Group& group,
                         const KeepFunction& keep) {
  std::vector<NamedTensors> parts;  // rank 0's
  if (group.is_first()) parts = by_parameter(std::move(state), parameters);
  OrderedJson descriptions = OrderedJson::array();
  for (const NamedTensors& part : parts) descriptions.push_back(describe(part));
  descriptions = OrderedJson::parse(group.broadcast(descriptions.dump(), 0));
  NamedTensors kept;
  for (size_t i = 0; i < descriptions.size(); ++i) {
    NamedTensors part = group.is_first() ? std::move(parts[i]) : empty_like(descriptions[i]);
    broadcast(part, group);
    for (auto& entry : keep(std::move(part))) kept.push_back(std::move(entry));
  }
  return kept;
}

}  // namespace flashstep
