// What libraries do not tell about the connections they make.
#pragma once

#include <string>
#include <vector>

namespace flashstep {

// A socket of this process; the kernel's number tells whether the descriptor still is that socket.
struct OpenSocket {
  int descriptor = -1;
  std::string identity;             // "socket:[12345]", from /proc/self/fd
  int own_port = 0, peer_port = 0;  // 0 where it has none
};

// Finds the sockets that somebody else's code opens between the constructor and opened().
class SocketRecorder {
 public:
  SocketRecorder();
  std::vector<OpenSocket> opened() const;

 private:
  std::vector<OpenSocket> before_;
};

// Ends the connections without closing the descriptors, which belong to others: whoever reads or
// writes there, or waits for it, gets an error at once.
void shut_down(const std::vector<OpenSocket>& sockets);

// A socket bound to `port` (0: any free one) of 127.0.0.1, closed on exec(); -1 and errno where
// that cannot be. It does not listen and shares the port (SO_REUSEADDR) with others that do so:
// nobody gets the port by chance then, and who asks for it, as c10d's stores do, can listen there.
int bind_shared(int port);
int port_of_socket(int descriptor);

// Whether a process of this machine listens on `port`, without a connection to it.
bool somebody_listens_on(int port);

// The address under which the other ranks reach this machine: that of the interface
// GLOO_SOCKET_IFNAME, as torch has it; else the one from which packets to `host` leave. A loopback
// address is taken only if `one_machine`; else the first interface's that is up.
std::string own_address(const std::string& host, bool one_machine);

}  // namespace flashstep
