#include "flashstep/bindings/group.h"

#include "flashstep/bindings/border.h"
#include "flashstep/bindings/registrations.h"

namespace flashstep::bindings {
namespace {

// None: this process alone.
c10::intrusive_ptr<GroupObject> make_group(
    std::optional<c10::intrusive_ptr<c10d::ProcessGroup>> process_group) {
  if (process_group) return c10::make_intrusive<GroupObject>(std::move(*process_group));
  return c10::make_intrusive<GroupObject>(Environment());
}

}  // namespace

void register_group(torch::Library& library) {
  library.class_<GroupObject>("Group")
      .def(torch::init(for_ranks(&make_group)))
      .def("rank", for_ranks(&GroupObject::rank))
      .def("world_size", for_ranks(&GroupObject::world_size));
}

}  // namespace flashstep::bindings
