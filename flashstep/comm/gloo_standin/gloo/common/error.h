// See README.md.
#pragma once

#include <stdexcept>

namespace gloo {

// What Gloo throws (a lost connection, a timeout) is derived from this.
struct Exception : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gloo
