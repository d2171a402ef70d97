// What a Group is made of.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "flashstep/comm/sockets.h"
#include "flashstep/comm/watch.h"
#include "flashstep/group.h"

namespace flashstep {

struct Group::Internals {
  GroupOptions options;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> gloo, nccl;  // nccl: null without
  std::vector<OpenSocket> connections;           // of the store and of Gloo
  std::vector<std::string> names;  // "rank 2 (process 4711 on node7)"; none of a rank alone
  std::shared_ptr<OutsideCollectives> outside;
  std::unique_ptr<Watch> watch;  // null for one rank, and for a group that others made
  int exceptions_at_start = 0;
  std::atomic<bool> gave_up = false;  // a collective that Gloo will not end
  bool waits_in_turns = false;  // so that a caller who wants to stop is heard (base/called_back.h)
  std::mutex mutex;             // of:
  std::map<at::DeviceIndex, c10::Stream> side_streams;
};

}  // namespace flashstep
