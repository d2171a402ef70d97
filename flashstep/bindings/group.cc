#include "flashstep/bindings/group.h"

#include <algorithm>

#include <c10/util/Exception.h>

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

std::chrono::milliseconds GroupObject::copies_limit(c10d::ProcessGroup& process_group) {
  const auto devices = process_group.getDeviceTypes();
  if (std::find(devices.begin(), devices.end(), c10::Device(at::kCUDA)) == devices.end()) return {};
  const auto backend = process_group.getBackend(at::kCUDA);
  if (backend->getBackendName() != "nccl") return {};
  try {
    return backend->getBackendOptions()->timeout;
  } catch (const c10::Error&) {  // a backend around NCCL's (TORCH_DISTRIBUTED_DEBUG=DETAIL)
    return {};
  }
}

void register_group(torch::Library& library) {
  library.class_<GroupObject>("Group")
      .def(torch::init(for_ranks(&make_group)))
      .def("take_part", for_ranks(&GroupObject::take_part))
      .def("rank", for_ranks(&GroupObject::rank))
      .def("world_size", for_ranks(&GroupObject::world_size));
}

}  // namespace flashstep::bindings
