// Counters in memory that all ranks of a group see, when they are processes of one machine. A GPU's
// stream can write them and wait for them, and any processor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flashstep/group.h"

namespace flashstep {

class SharedCounters {
 public:
  // `kinds` counters a rank, 0 at first. Null, on all ranks, unless all see the same memory: ranks
  // on several machines or in containers apart do not. All ranks call it. Nothing of it has a name
  // that could be left behind.
  static std::unique_ptr<SharedCounters> make(const Group& group, int kinds);
  ~SharedCounters();
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;

  std::atomic<uint32_t>& at(int kind, int rank) const;
  // All of it, whole pages.
  void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedCounters(void* memory, size_t bytes, int world_size)
      : memory_(memory), bytes_(bytes), world_size_(world_size) {}

  void* memory_;
  size_t bytes_;
  int world_size_;
};

}  // namespace flashstep
