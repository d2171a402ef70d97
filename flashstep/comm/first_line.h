// The errors of c10d and Gloo as one line.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "flashstep/base/text.h"

namespace flashstep {

// c10's errors carry a backtrace, Gloo's the place in its source in front: neither is for people.
inline std::string first_line(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  std::string text = ours ? ours->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with("[") && text.find("] ") != std::string::npos) {
    text.erase(0, text.find("] ") + 2);
  }
  return text;
}

}  // namespace flashstep
