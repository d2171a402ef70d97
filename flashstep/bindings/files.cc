// Checkpoints for Python, in the form that the program writes and reads.
#include "flashstep/bindings/files.h"

#include <string>
#include <utility>
#include <vector>

#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/parallel/state_pieces.h"

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

void write(std::string_view directory, Names model_names, Tensors model, Names optimizer_names,
           Tensors optimizer, int64_t step, std::string_view state_json) {
  write_checkpoint(std::string(directory),
                   {step, named(model_names, model), named(optimizer_names, optimizer),
                    std::string(state_json)});
}

c10::intrusive_ptr<CheckpointFiles> open_files(std::string directory) {
  return c10::make_intrusive<CheckpointFiles>(open_checkpoint(directory));
}

}  // namespace

at::Tensor CheckpointFiles::read_joined(const std::string& name, const at::Tensor& parameter,
                                        Names names, std::vector<int64_t> indices) {
  StoredTensors state;
  for (size_t i = 0; i < indices.size(); ++i) {
    state.push_back(tensors(false).at(indices[i]));
    state.back().name = names.at(i);
  }
  const NamedTensors joined =
      cut_joined(std::move(state), {{name, parameter}}, {{name, parameter}});
  require(joined.size() == 1, "[checkpoint] expected state of one kind of ", name, ", got ",
          joined.size());
  return joined.front().second;
}

void register_files(torch::Library& library) {
  Definitions definitions(library);
  definitions.plain(
      "write_checkpoint(str directory, str[] model_names, Tensor[] model, str[] optimizer_names, "
      "Tensor[] optimizer, int step, str state_json) -> ()",
      &write);
  library.class_<CheckpointFiles>("CheckpointFiles")
      .def(torch::init(for_python(&open_files)))
      .def("step", for_python(&CheckpointFiles::step))
      .def("state_json", for_python(&CheckpointFiles::state_json))
      .def("names", for_python(&CheckpointFiles::names))
      .def("form", for_python(&CheckpointFiles::form))
      .def("read", for_python(&CheckpointFiles::read))
      .def("read_joined", for_python(&CheckpointFiles::read_joined));
}

}  // namespace flashstep::bindings
