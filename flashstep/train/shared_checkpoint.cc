#include "flashstep/train/shared_checkpoint.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

namespace flashstep::train {
namespace {

using torch::Tensor;
using Json = nlohmann::ordered_json;

constexpr const char* kGather = "bringing the optimizer's state to rank 0";

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

NamedTensors gather_tensors(const NamedTensors& own, const comm::Group& group) {
  const std::vector<std::string> descriptions = group.all_gather(describe(own).dump());
  if (!group.is_first()) {
    for (const auto& [name, tensor] : own) {
      std::vector<Tensor> message = {tensor.cpu().contiguous()};
      group.wait(group.guarded(kGather, [&] { return group.process_group().send(message, 0, 0); }),
                 kGather);
    }
    return {};
  }
  NamedTensors all = own;
  for (int rank = 1; rank < group.world_size(); ++rank) {
    for (auto& [name, tensor] : empty_like(Json::parse(descriptions[rank]))) {
      std::vector<Tensor> message = {tensor};
      group.wait(
          group.guarded(kGather, [&] { return group.process_group().recv(message, rank, 0); }),
          kGather);
      all.emplace_back(name, tensor);
    }
  }
  return all;
}

}  // namespace flashstep::train
