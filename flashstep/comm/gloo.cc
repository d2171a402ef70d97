#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <unistd.h>

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

void explain_gloo_terminations() {
  static std::terminate_handler before = nullptr;
  static const auto explain = [] {
    try {
      if (const std::exception_ptr thrown = std::current_exception())
        std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      if (std::string_view(error.what()).find("gloo/transport") == std::string_view::npos) before();
      const std::string sentence = flashstep::str(
          "flashstep: [comm] another message came than this rank waits for: the ranks are in "
          "different collectives, or their tensors differ (Gloo: ",
          first_line(error), ")\n");
      [[maybe_unused]] const ssize_t written = write(2, sentence.data(), sentence.size());
      std::_Exit(1);
    } catch (...) {
    }
    before();
  };
  static std::once_flag once;
  std::call_once(once, [] { before = std::set_terminate(explain); });
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
