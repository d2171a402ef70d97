// Ranks as child processes of this one: for `flashstep launch`, and for tests.
#pragma once

#include <set>
#include <sys/types.h>

#include "flashstep/base/subprocess.h"
#include "flashstep/detail/environment.h"

namespace flashstep {

// A port of 127.0.0.1 that nobody gets by chance while this lives, but a rank 0 of ours or of
// torch.distributed that asks for it.
class FreePort {
 public:
  FreePort();
  ~FreePort();
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  int number() const { return number_; }

 private:
  int descriptor_ = -1, number_ = 0;
};

// `base` (of this process, usually) with what makes a process rank `rank` of `world_size` on this
// machine, whose rank 0 holds the store at `port`; 0 is any, for a single rank.
Variables rank_variables(Variables base, int rank, int world_size, int port);

// Whether a process that is no zombie is in one of these process groups. Looks at all processes.
bool is_anyone_in(const std::set<pid_t>& groups);

}  // namespace flashstep
