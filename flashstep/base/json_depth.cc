#include "flashstep/base/json_depth.h"

#include <algorithm>

namespace flashstep {

int json_depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

std::string json_complaint(std::string_view what) {
  const size_t end = what.find("] ");
  const bool has_number = what.starts_with("[json.exception.") && end != what.npos;
  return std::string(has_number ? what.substr(end + 2) : what);
}

}  // namespace flashstep
