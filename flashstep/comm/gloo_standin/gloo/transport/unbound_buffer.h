// See README.md.
#pragma once

namespace gloo::transport {

// Made by Context::createUnboundBuffer; deleting one goes through the destructor's place in the
// table of virtual functions, which is the first.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
