#include "flashstep/report/link_limit.h"

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "flashstep/base/error.h"
#include "flashstep/comm/child.h"
#include "flashstep/measure/clock.h"

namespace flashstep::report {
namespace {

constexpr size_t kMessageBytes = size_t{1} << 20;

// The first row whose name stands in the GPU's name holds: special models come before general ones.
struct NvlinkRow {
  const char* name;
  double bytes_per_s;
  const char* source;
};
constexpr NvlinkRow kNvlinks[] = {
    {"H200 NVL", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H200 data sheet: 900 GB/s)"},
    {"H200", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H200 data sheet: 900 GB/s)"},
    {"H100 NVL", 300e9, "NVLink 4, 12 links of 25 GB/s a direction (H100 data sheet: 600 GB/s)"},
    {"H100 PCIe", 300e9, "NVLink 4, 12 links of 25 GB/s a direction (H100 data sheet: 600 GB/s)"},
    {"H100", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H100 data sheet: 900 GB/s)"},
    {"A100", 300e9, "NVLink 3, 12 links of 25 GB/s a direction (A100 data sheet: 600 GB/s)"},
    {"B200", 900e9, "NVLink 5, 18 links of 50 GB/s a direction (B200 data sheet: 1.8 TB/s)"},
};

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) throw_errno(errno, "[bench] cannot connect over the loopback");
  }
  ~Socket() { ::close(descriptor_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

void connect_to(const Socket& socket, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw_errno(errno, "[bench] cannot connect over the loopback");
  }
}

}  // namespace

std::optional<Link> nvlink_limit(const std::string& gpu_name) {
  for (const NvlinkRow& row : kNvlinks) {
    if (gpu_name.find(row.name) != std::string::npos) return Link{row.bytes_per_s, row.source};
  }
  return std::nullopt;
}

Link measure_loopback(double seconds) {
  const comm::FreePort port;
  const Socket sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  connect_to(sender, port.port());
  const Socket receiver(accept4(port.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  std::thread sending([&] {
    const std::vector<char> message(kMessageBytes, 'x');
    const double start = measure::steady_seconds();
    while (measure::steady_seconds() - start < seconds) {
      if (send(sender.descriptor(), message.data(), message.size(), MSG_NOSIGNAL) <= 0) break;
    }
    shutdown(sender.descriptor(), SHUT_WR);
  });
  std::vector<char> memory(kMessageBytes);
  double bytes = 0;
  const double start = measure::steady_seconds();
  ssize_t count;
  while ((count = recv(receiver.descriptor(), memory.data(), memory.size(), 0)) > 0) {
    bytes += static_cast<double>(count);
  }
  const double elapsed = measure::steady_seconds() - start;
  sending.join();
  return {bytes / elapsed, "one TCP stream over the loopback, measured before the run"};
}

}  // namespace flashstep::report
