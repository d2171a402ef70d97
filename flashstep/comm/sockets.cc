#include "flashstep/comm/sockets.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// "socket:[12345]", or whatever else the descriptor is; empty when it is closed.
std::string identity_of(int descriptor) {
  std::error_code error;
  return fs::read_symlink(str("/proc/self/fd/", descriptor), error).string();
}

int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

// The port that getsockname or getpeername tells; 0 if the socket has none.
int port_by(int (*question)(int, sockaddr*, socklen_t*), int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (question(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return port_of(address);
}

std::vector<OpenSocket> open_sockets() {
  std::vector<OpenSocket> sockets;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    std::string identity = identity_of(descriptor);
    if (!identity.starts_with("socket:")) continue;
    sockets.push_back({descriptor, std::move(identity), port_by(getsockname, descriptor),
                       port_by(getpeername, descriptor)});
  }
  return sockets;
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.empty();
}

// The address of interface `name`; with an empty name of the first that is up and no loopback.
std::string interface_address(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (!(entry->ifa_flags & IFF_UP)) continue;
      const std::string address = address_text(entry->ifa_addr);
      const bool local = is_loopback(address) || address.starts_with("fe80:");  // of one link only
      if (name.empty() ? !local : name == entry->ifa_name) return address;
    }
  }
  return "";
}

// Our address on the way to `host`: connecting a datagram socket sends nothing and picks the route.
std::string address_towards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    auto* const generic = reinterpret_cast<sockaddr*>(&own);
    const bool found = connect(descriptor, entry->ai_addr, entry->ai_addrlen) == 0 &&
                       getsockname(descriptor, generic, &size) == 0;
    close(descriptor);
    if (found) return address_text(generic);
  }
  return "";
}

}  // namespace

SocketRecorder::SocketRecorder() : before_(open_sockets()) {}

std::vector<OpenSocket> SocketRecorder::opened() const {
  std::vector<OpenSocket> sockets = open_sockets();
  const auto was_there = [this](const OpenSocket& socket) {
    return std::any_of(before_.begin(), before_.end(), [&](const OpenSocket& before) {
      return before.identity == socket.identity;
    });
  };
  sockets.erase(std::remove_if(sockets.begin(), sockets.end(), was_there), sockets.end());
  return sockets;
}

void shut_down(const std::vector<OpenSocket>& sockets) {
  for (const OpenSocket& socket : sockets) {
    if (identity_of(socket.descriptor) == socket.identity) shutdown(socket.descriptor, SHUT_RDWR);
  }
}

std::string own_address(const std::string& host, bool one_machine) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    const std::string address = interface_address(interface);
    require(!address.empty(),
            "[comm] expected GLOO_SOCKET_IFNAME to name a network interface that "
            "is up, got \"",
            interface, "\"");
    return address;
  }
  const std::string address = address_towards(host);
  if (one_machine) return address.empty() ? "127.0.0.1" : address;
  // Debian maps a machine's own name to 127.0.1.1, which nobody else reaches.
  const std::string other = is_loopback(address) ? interface_address("") : address;
  require(!other.empty(),
          "[comm] expected a network interface by which the ranks on other machines "
          "reach this one, got none; name one in GLOO_SOCKET_IFNAME");
  return other;
}

int bind_shared(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int shared = 1;
  if (descriptor >= 0 &&
      (setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &shared, sizeof shared) != 0 ||
       bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)) {
    const int error = errno;
    close(descriptor);
    errno = error;
    return -1;
  }
  return descriptor;
}

int port_of_socket(int descriptor) { return port_by(getsockname, descriptor); }

bool somebody_listens_on(int port) {
  const int descriptor = bind_shared(port);
  if (descriptor < 0) return errno == EADDRINUSE;
  close(descriptor);
  return false;
}

}  // namespace flashstep
