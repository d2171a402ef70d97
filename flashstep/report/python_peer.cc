#include "flashstep/report/python_peer.h"

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::report {

using Json = nlohmann::json;

void PythonPeer::start() {
  require(failure_.empty(), failure_);
  if (command_.empty()) failure_ = "no program of Python's was given";
  try {
    if (failure_.empty()) {
      process_ = std::make_unique<Subprocess>(
          ChildOptions{.command = command_, .has_input = true, .errors = Errors::kDropped});
      if (!process_->read_line())
        failure_ = str("\"", join(command_, " "), "\" did not start: it needs Python's torch");
    }
  } catch (const MachineError& error) {
    failure_ = error.what();
  }
  if (failure_.empty()) return;
  process_.reset();
  throw UserError(failure_);
}

Json PythonPeer::ask(const Json& request) {
  if (process_ == nullptr) start();
  const auto line = process_->write_line(request.dump()) ? process_->read_line() : std::nullopt;
  if (!line) {
    process_.reset();
    throw MachineError("the Python program ended");
  }
  Json answer = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) throw MachineError("the Python program answered \"" + *line + "\"");
  if (answer.contains("error")) throw MachineError(answer["error"].get<std::string>());
  return answer;
}

void PythonPeer::tell_if_running(const Json& request) {
  if (process_ == nullptr) return;
  if (!process_->write_line(request.dump()) || !process_->read_line()) process_.reset();
}

}  // namespace flashstep::report
