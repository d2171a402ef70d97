#include "flashstep/comm/child.h"

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "flashstep/error.h"

namespace flashstep {

FreePort::FreePort() {
  descriptor_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) throw_errno(errno, "[launch] cannot open a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, generic, size) != 0 || listen(descriptor_, SOMAXCONN) != 0 ||
      getsockname(descriptor_, generic, &size) != 0) {
    const int error = errno;
    close();
    throw_errno(error, "[launch] cannot listen on a free port of 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
}

void FreePort::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Variables rank_variables(Variables base, int rank, int world_size, const FreePort& port) {
  // Another launcher around this one has nothing to say about our ranks.
  for (auto entry = base.begin(); entry != base.end();) {
    entry = entry->first.starts_with("TORCHELASTIC_") ? base.erase(entry) : std::next(entry);
  }
  base["RANK"] = base["LOCAL_RANK"] = std::to_string(rank);
  base["WORLD_SIZE"] = base["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(port.port());
  base["FLASHSTEP_LAUNCH"] = "1";
  base.erase("FLASHSTEP_STORE_DESCRIPTOR");
  if (rank == 0) base["FLASHSTEP_STORE_DESCRIPTOR"] = std::to_string(port.descriptor());
  return base;
}

}  // namespace flashstep
