// Ranks as child processes of this one: for `flashstep launch`, and for tests.
#pragma once

#include "flashstep/base/subprocess.h"
#include "flashstep/detail/environment.h"

namespace flashstep {

// A listening socket on a free port of 127.0.0.1, closed on exec().
class FreePort {
 public:
  FreePort();
  ~FreePort() { close(); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  void close();  // once rank 0 has it: when rank 0 dies, nobody shall wait for its answer

  int port() const { return port_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1, port_ = 0;
};

// `base` (of this process, usually) with what makes a process rank `rank` of `world_size` on this
// machine; rank 0 is told of `port`'s socket, which it must inherit.
Variables rank_variables(Variables base, int rank, int world_size, const FreePort& port);

}  // namespace flashstep
