// See README.md: the one type here whose layout matters.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <vector>

namespace gloo {

// Member by member as the library lays it out.
class AllreduceOptions {
 public:
  std::shared_ptr<Context> context;
  std::chrono::milliseconds timeout{0};
  int algorithm = 0;  // 0: the library's choice, a ring
  std::vector<std::unique_ptr<transport::UnboundBuffer>> in, out;  // without `in`, in place
  size_t elements = 0, element_size = 0;
  std::function<void(void* sum, const void* a, const void* b, size_t elements)> reduce;
  uint32_t tag = 0;
  size_t max_segment_bytes = size_t{1} << 20;  // the library's own value
};

void allreduce(const AllreduceOptions& options);

}  // namespace gloo
