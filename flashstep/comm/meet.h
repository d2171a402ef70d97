// How the ranks of a job find each other: a store, and everybody's name in it.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "flashstep/comm/sockets.h"
#include "flashstep/detail/environment.h"
#include "flashstep/group.h"

namespace flashstep {

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;        // keys of this job and attempt only
  c10::intrusive_ptr<c10d::Store> watch_store;  // the same through a connection of its own
  std::vector<OpenSocket> connection, watch_connection;
  std::vector<std::string> names;  // "rank 2 (process 4711 on node7)", by rank
  std::string store_name;          // "rank 0 (process 12 on node1), which holds the store,"
};

// Opens the store (rank 0 holds it, unless torchrun's agent does) and waits until all ranks have
// written their name and first heartbeat. MachineError names the ranks that have not come within
// timeouts.start, or says that there is no store; UserError if two processes are the same rank.
Meeting meet(const Environment& environment, const Timeouts& timeouts);

}  // namespace flashstep
