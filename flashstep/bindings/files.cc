// Checkpoints for Python, in the form that the program writes and reads.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"

namespace flashstep::bindings {
namespace {

using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

NamedTensors named(const Names& names, const Tensors& tensors) {
  require(names.size() == tensors.size(), "[checkpoint] expected a name for each of ",
          tensors.size(), " tensors, got ", names.size());
  NamedTensors result;
  for (size_t i = 0; i < names.size(); ++i) result.emplace_back(names[i], tensors[i]);
  return result;
}

void take_apart(NamedTensors& named, Names& names, Tensors& tensors) {
  for (auto& [name, tensor] : named) {
    names.push_back(std::move(name));
    tensors.push_back(std::move(tensor));
  }
}

void write(std::string_view directory, Names model_names, Tensors model, Names optimizer_names,
           Tensors optimizer, int64_t step, std::string_view state_json) {
  write_checkpoint(std::string(directory),
                   {step, named(model_names, model), named(optimizer_names, optimizer),
                    std::string(state_json)});
}

std::tuple<Names, Tensors, Names, Tensors, int64_t, std::string> read(std::string_view directory) {
  Checkpoint checkpoint = load_checkpoint(std::string(directory));
  std::tuple<Names, Tensors, Names, Tensors, int64_t, std::string> result;
  auto& [model_names, model, optimizer_names, optimizer, step, state_json] = result;
  take_apart(checkpoint.model, model_names, model);
  take_apart(checkpoint.optimizer, optimizer_names, optimizer);
  step = checkpoint.step;
  state_json = std::move(checkpoint.state_json);
  return result;
}

}  // namespace

void register_files(torch::Library& library) {
  Definitions definitions(library);
  definitions.plain(
      "write_checkpoint(str directory, str[] model_names, Tensor[] model, str[] optimizer_names, "
      "Tensor[] optimizer, int step, str state_json) -> ()",
      &write);
  definitions.plain(
      "read_checkpoint(str directory) -> (str[], Tensor[], str[], Tensor[], int, str)", &read);
}

}  // namespace flashstep::bindings
