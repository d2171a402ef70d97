// Where each piece of a trace's time belongs: to which pass of a step, to which range of the model,
// to which class of work. Torch-free.
//
// On a GPU the pieces are kernels and copies. A kernel belongs to the operator that launched it (by
// the profiler's correlation), an operator to the innermost range around it on its thread, and to
// the pass that runs on the host when it begins. On a CPU the pieces are the operators, each with
// the time in which no operator below it runs, and the ranges, with the time outside of operators.
//
// An operator of the backward pass belongs to the range of the forward operator that it
// differentiates: autograd numbers its nodes in the order in which they are made, and operators and
// ranges carry the next number at their beginning, so that a node was made by the last of them
// whose number is not above its own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/trace/trace_events.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {

enum class Pass : uint8_t { kForward, kBackward, kOptimizer, kOutside };
inline constexpr int kPasses = static_cast<int>(Pass::kOutside) + 1;
const char* pass_name(Pass pass);  // "forward", "backward", "optimizer", "outside"

// Ranges as they lie in each other, without those of passes and steps. Blocks ("layers.3") are one,
// "layers.*", which lies at the top wherever they were run: recomputation runs them inside of the
// backward pass.
class RangeTree {
 public:
  static constexpr uint32_t kRoot = 0;

  RangeTree() : nodes_{{kRoot, ""}} {}
  uint32_t child(uint32_t parent, const std::string& name);
  uint32_t parent(uint32_t node) const { return nodes_[node].parent; }
  const std::string& name(uint32_t node) const { return nodes_[node].name; }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  std::vector<std::string> path(uint32_t node) const;  // names from the top down

 private:
  struct Node {
    uint32_t parent;
    std::string name;
  };
  std::vector<Node> nodes_;
  std::map<std::pair<uint32_t, std::string>, uint32_t> children_;
};

// The number of a block by the name of its range; -1 for other ranges.
int32_t block_of(const std::string& range_name);

// The range around a piece of work, and the number of the block that it is of; -1: of none.
struct RangeOfBlock {
  uint32_t range = RangeTree::kRoot;
  int32_t block = -1;
};

struct WorkItem {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t self_ns = 0;  // on a GPU the whole of it
  uint32_t event = 0;   // in the trace
  RangeOfBlock within = {};
  Pass pass = Pass::kOutside;
  WorkClass work_class = WorkClass::kOther;
  bool is_call = true;  // false for a piece of the operator around it, of the same name
};

// FLOPs and bytes of one operator, counted once where operators call operators.
struct OperatorItem {
  double flops = 0, bytes = 0;
  uint32_t range = RangeTree::kRoot;
  Pass pass = Pass::kOutside;
  WorkClass work_class = WorkClass::kOther;
};

// When a range ran on the host. Steps and warm-ups are outside passes.
struct RangeTime {
  int64_t begin_ns = 0, end_ns = 0;
  Pass pass = Pass::kOutside;
};

struct Attribution {
  bool on_gpu = false;
  RangeTree ranges;
  std::vector<WorkItem> items;  // in time order
  std::vector<OperatorItem> operators;
  std::vector<RangeTime> passes;  // in time order
  std::vector<RangeTime> steps;   // the ranges "step", in time order

  bool is_in_a_step(int64_t ns) const;
};

// Warm-up (ranges of that name, and what began in them) is left out, and where there are steps what
// began outside of them.
Attribution attribute(const TraceEvents& trace);

}  // namespace flashstep::tools
