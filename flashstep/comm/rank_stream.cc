#include "flashstep/comm/rank_stream.h"

#include <algorithm>
#include <cerrno>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

namespace flashstep {

size_t RankStream::pass_on(size_t most) {
  char bytes[65536];
  const ssize_t count = read(from, bytes, std::min(most, sizeof bytes));
  if (count > 0) {
    take({bytes, static_cast<size_t>(count)});
    return static_cast<size_t>(count);
  }
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) end();
  return 0;
}

void RankStream::finish() {
  int left = 0;
  if (from >= 0 && ioctl(from, FIONREAD, &left) == 0) {
    for (size_t count; left > 0 && (count = pass_on(static_cast<size_t>(left))) > 0;)
      left -= static_cast<int>(count);
  }
  end();
}

void RankStream::end() {
  if (!begun.empty()) take("\n");
  from = -1;
}

void RankStream::take(std::string_view bytes) {
  const size_t whole = bytes.rfind('\n') + 1;  // npos + 1 = 0: no line ends here
  begun.append(bytes.substr(0, whole));
  if (whole > 0) {
    std::string lines;
    size_t start = 0;
    for (size_t end; (end = begun.find('\n', start)) != std::string::npos; start = end + 1) {
      if (end > start) last_line = begun.substr(start, end - start);
      lines += label;
      lines.append(begun, start, end + 1 - start);
    }
    begun.clear();
    to->add(std::move(lines));
  }
  begun.append(bytes.substr(whole));
}

}  // namespace flashstep
