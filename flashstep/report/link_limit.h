// What the links between ranks of one machine carry at most, one way.
#pragma once

#include <optional>
#include <string>

namespace flashstep::report {

struct Link {
  double bytes_per_s;  // a rank's, in one direction
  std::string source;  // "data sheet: ...", or how it was measured
};

// NVLink of a GPU by the name that CUDA gives it, as its data sheet promises; nothing if we have
// none, or it has no NVLink.
std::optional<Link> nvlink_limit(const std::string& gpu_name);

// TCP over this machine's loopback, as measure/limits.h has it.
Link loopback_limit();

}  // namespace flashstep::report
