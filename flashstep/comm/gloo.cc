#define USE_C10D_GLOO  // else LibTorch's header is empty
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include "flashstep/base/text.h"
#include "flashstep/comm/backends.h"
#include "flashstep/comm/first_line.h"

namespace flashstep {

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int world_size, const std::string& address,
                                            std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  try {
    options->devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
  } catch (const std::exception& error) {  // c10d throws a plain c10::Error for lost connections
    C10_THROW_ERROR(DistBackendError, flashstep::str("Gloo at ", address, ": ", first_line(error)));
  }
}

bool is_gloo_collective(const c10d::Work& work) {
  return dynamic_cast<const c10d::ProcessGroupGloo::AsyncWork*>(&work) != nullptr;
}

bool is_compared(const c10d::Backend& backend) {
  return dynamic_cast<const c10d::ProcessGroupWrapper*>(&backend) != nullptr;
}

bool is_network_error(const std::exception& error) {
  return dynamic_cast<const gloo::Exception*>(&error) != nullptr ||
         dynamic_cast<const c10::DistError*>(&error) != nullptr;
}

}  // namespace flashstep
