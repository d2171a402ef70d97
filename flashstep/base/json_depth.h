// How deeply JSON text is nested, found out before it is parsed: the JSON library writes and visits
// nested values by recursion, so that a file of a million brackets would exhaust the stack.
#pragma once

#include <string>
#include <string_view>

namespace flashstep {

// Deeper than any file of ours or of our peers.
inline constexpr int kMaxJsonDepth = 64;

// The deepest nesting of arrays and objects; counts brackets outside of text. For text that is no
// JSON some number.
int json_depth(std::string_view json);

// The JSON library's complaint without its own number: "[json.exception.parse_error.101] parse
// error at line 2, ..." becomes "parse error at line 2, ...".
std::string json_complaint(std::string_view what);

}  // namespace flashstep
