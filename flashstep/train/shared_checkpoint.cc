#include "flashstep/train/shared_checkpoint.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

namespace flashstep::train {
namespace {

using Json = nlohmann::ordered_json;

// Names, types and shapes, from which a receiver makes the tensors that it receives into.
Json describe(const NamedTensors& tensors) {
  Json result = Json::array();
  for (const auto& [name, tensor] : tensors) {
    result.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return result;
}

NamedTensors empty_like(const Json& description) {
  NamedTensors tensors;
  for (const Json& entry : description) {
    tensors.emplace_back(entry[0].get<std::string>(),
                         at::empty(entry[2].get<std::vector<int64_t>>(),
                                   static_cast<at::ScalarType>(entry[1].get<int>())));
  }
  return tensors;
}

}  // namespace

std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const comm::Group& group) {
  Json description;
  if (group.is_first() && checkpoint) {
    description = {{"step", checkpoint->step},
                   {"state", checkpoint->state_json},
                   {"model", describe(checkpoint->model)},
                   {"optimizer", describe(checkpoint->optimizer)}};
  }
  description = Json::parse(group.broadcast(description.dump(), 0));
  if (description.is_null()) return std::nullopt;
  if (!group.is_first()) {
    checkpoint.emplace();
    checkpoint->step = description.at("step");
    checkpoint->state_json = description.at("state");
    checkpoint->model = empty_like(description.at("model"));
    checkpoint->optimizer = empty_like(description.at("optimizer"));
  }
  for (NamedTensors* part : {&checkpoint->model, &checkpoint->optimizer}) {
    for (auto& [name, tensor] : *part) {
      tensor = tensor.cpu().contiguous();
      group.broadcast(tensor, 0);
    }
  }
  return checkpoint;
}

}  // namespace flashstep::train
