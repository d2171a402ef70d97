#include "flashstep/measure/loopback.h"

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "flashstep/error.h"
#include "flashstep/measure/clock.h"

namespace flashstep::measure {
namespace {

constexpr size_t kMessageBytes = size_t{1} << 20;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) fail();
  }
  ~Socket() { ::close(descriptor_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor() const { return descriptor_; }

  [[noreturn]] static void fail() {
    throw_errno(errno, "[limits] cannot connect over the loopback");
  }

 private:
  int descriptor_;
};

Socket tcp_socket() { return Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Two ends of a connection.
struct Connection {
  Socket listener = tcp_socket();
  Socket sender = tcp_socket();
  Socket receiver = accepted();

 private:
  Socket accepted() {
    sockaddr_in address = {};  // port 0: one that is free
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    if (bind(listener.descriptor(), at, size) != 0 || listen(listener.descriptor(), 1) != 0 ||
        getsockname(listener.descriptor(), at, &size) != 0 ||
        connect(sender.descriptor(), at, size) != 0)
      Socket::fail();
    return Socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  }
};

}  // namespace

std::vector<double> measure_loopback(int windows, double seconds) {
  const Connection connection;
  std::jthread sending([&](const std::stop_token& stop) {
    const std::vector<char> message(kMessageBytes, 'x');
    while (!stop.stop_requested()) {
      if (send(connection.sender.descriptor(), message.data(), message.size(), MSG_NOSIGNAL) <= 0)
        break;
    }
    shutdown(connection.sender.descriptor(), SHUT_WR);
  });
  std::vector<char> memory(kMessageBytes);
  const auto receive = [&] {
    const ssize_t count = recv(connection.receiver.descriptor(), memory.data(), memory.size(), 0);
    return count > 0 ? static_cast<double>(count) : 0.0;
  };
  std::vector<double> rates;
  for (int window = -1; window < windows; ++window) {
    double bytes = 0, elapsed = 0;
    const double start = steady_seconds();
    while (elapsed < seconds) {
      bytes += receive();
      elapsed = steady_seconds() - start;
    }
    if (window >= 0) rates.push_back(bytes / elapsed);
  }
  sending.request_stop();
  while (receive() > 0) continue;  // what is under way, so that the sender does not wait for room
  return rates;
}

}  // namespace flashstep::measure
