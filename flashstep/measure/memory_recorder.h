// What MemoryObserver writes down, as the hooks in LibTorch tell it. Not synchronized: whoever
// calls it holds one lock for all calls.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "flashstep/measure/memory_trace.h"

namespace flashstep::measure {

using Stack = std::vector<void*>;  // return addresses, innermost first
Stack current_stack();

class MemoryRecorder {
 public:
  MemoryRecorder();

  void allocated(uint64_t address, int64_t bytes, const Stack& stack);
  void freed(uint64_t address);
  // Of what is at this address now; the first that is told stays.
  void label(uint64_t address, MemoryKind kind);
  void shape(uint64_t address, const std::string& text);

  // On the thread where it happens. `sequence`: LibTorch's number of the next node for backward.
  void begin_range(std::string_view name, uint64_t sequence);
  void end_range(uint64_t sequence);
  // `node`: the sequence number of the node for backward that runs, -1 for other operators. A node
  // is in the range in which its forward ran, below "backward".
  void begin_operator(std::string_view name, int64_t node);
  void end_operator();

  MemoryTrace take();

 private:
  // Where a thread is: ids of paths. Ranges and operators nest in each other.
  struct Scope {
    uint32_t ranges = 0, operators = 0;
  };
  struct Thread {
    uint64_t recorder = 0;  // its number
    std::vector<Scope> scopes;
  };

  Thread& thread();
  Scope scope();  // of this thread; outside of ranges where the trace's own thread is
  uint32_t path(uint32_t parent, std::string_view name);
  uint32_t backward_path(uint32_t base, int64_t node);
  uint32_t site(const Stack& stack);
  double seconds() const;
  uint32_t next_event() const { return static_cast<uint32_t>(trace_.events.size()); }
  void pop();
  void resolve_frames();

  const uint64_t number_;  // 1, 2, ...: of all recorders of this process
  MemoryTrace trace_;
  double start_;
  const Thread* main_;                           // the thread that made this
  uint32_t main_ranges_ = 0;                     // where it is
  std::vector<size_t> open_ranges_;              // its, of trace_.ranges
  std::unordered_map<uint64_t, uint32_t> live_;  // allocations by address
  std::vector<std::string> paths_ = {""};
  std::unordered_map<std::string, uint32_t> path_ids_ = {{"", 0}};
  std::map<uint64_t, uint32_t> forward_paths_;  // from this sequence number on
  std::map<Stack, uint32_t> stack_ids_;
  std::vector<const Stack*> stacks_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> site_ids_;
  std::vector<uint32_t> site_stacks_ = {0};
  std::unordered_map<std::string, uint32_t> shape_ids_;
};

}  // namespace flashstep::measure
