// See README.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

namespace gloo {

namespace transport {
class UnboundBuffer;
}

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds getTimeout() const;
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* memory, size_t bytes);
};

}  // namespace gloo
