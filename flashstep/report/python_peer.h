// A baseline in a Python process, which takes turns with ours: one JSON object a line there, one
// back. It says a line when it is ready.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "flashstep/base/subprocess.h"

namespace flashstep::report {

class PythonPeer {
 public:
  explicit PythonPeer(std::vector<std::string> command) : command_(std::move(command)) {}

  // Starts it where it does not run. UserError where there is no such program or it does not become
  // ready; MachineError where it ends, answers with no object, or with {"error": its reason}.
  nlohmann::json ask(const nlohmann::json& request);
  // The same, where it runs; nothing that it says is an error.
  void tell_if_running(const nlohmann::json& request);

 private:
  void start();

  std::vector<std::string> command_;
  std::unique_ptr<Subprocess> process_;
  std::string failure_;  // why it cannot be started
};

}  // namespace flashstep::report
