// What a Group is made of.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "flashstep/comm/sockets.h"
#include "flashstep/comm/watch.h"
#include "flashstep/group.h"

namespace flashstep {

// What the watch counts of a group, and ends when a rank is lost.
struct Links {
  c10::intrusive_ptr<c10d::Backend> gloo, nccl;  // nccl: null without
  std::vector<OpenSocket> connections;           // of Gloo, and of the whole group's store
};

struct Group::Internals : Links {
  const pid_t process = ::getpid();  // whose threads serve it
  GroupOptions options;
  Environment environment;                // of a part: its ranks are the world
  c10::intrusive_ptr<c10d::Store> store;  // null for a group that others made
  const Group* whole = nullptr;           // that this one was split from
  std::map<std::vector<int64_t>, std::unique_ptr<Group>> parts;  // by all ranks' colors
  std::vector<std::string> names;  // "rank 2 (process 4711 on node7)"; none of a rank alone
  std::shared_ptr<OutsideCollectives> outside;  // the whole group's, and
  std::shared_ptr<Watch> watch;  // null for one rank, and for a group that others made
  int exceptions_at_start = 0;
  bool waits_in_turns = false;  // so that a caller who wants to stop is heard (base/called_back.h)
  std::mutex mutex;             // of:
  std::map<at::DeviceIndex, c10::Stream> side_streams;

  std::vector<Links> all_links() const;  // its own, and its parts'
};

}  // namespace flashstep
