#include "flashstep/comm/child.h"

#include <cerrno>
#include <unistd.h>

#include "flashstep/comm/sockets.h"
#include "flashstep/error.h"

namespace flashstep {

FreePort::FreePort() : descriptor_(bind_shared(0)) {
  if (descriptor_ < 0) throw_errno(errno, "[launch] cannot take a free port of 127.0.0.1");
  number_ = port_of_socket(descriptor_);
}

FreePort::~FreePort() { close(descriptor_); }

Variables rank_variables(Variables base, int rank, int world_size, int port) {
  // Another launcher around this one has nothing to say about our ranks.
  for (auto entry = base.begin(); entry != base.end();) {
    entry = entry->first.starts_with("TORCHELASTIC_") ? base.erase(entry) : std::next(entry);
  }
  base["RANK"] = base["LOCAL_RANK"] = std::to_string(rank);
  base["WORLD_SIZE"] = base["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(port);
  base["FLASHSTEP_LAUNCH"] = "1";
  return base;
}

}  // namespace flashstep
