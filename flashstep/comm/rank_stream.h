// One stream of a rank's output, passed on in whole lines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "flashstep/comm/output_queue.h"

namespace flashstep {

struct RankStream {
  int from = -1;  // does not block; -1 at its end
  OutputQueue* to = nullptr;
  std::string label, begun = {}, last_line = {};

  // Reads once, at most so many bytes and no more than a pipe usually holds: nobody else waits for
  // a rank that prints without end. How many came.
  size_t pass_on(size_t most);
  // Of a rank that has ended: what it left in the pipe. What its own children may still print is
  // not awaited.
  void finish();

 private:
  void end();
  void take(std::string_view bytes);
};

}  // namespace flashstep
