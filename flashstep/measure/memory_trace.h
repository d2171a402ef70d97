// What a program's tensors occupied, allocation by allocation: who made each, what it held, how
// long it lived. Torch-free; memory_observer.h records one, memory_snapshot.h reads and writes it
// as PyTorch's memory snapshots.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep::measure {

enum class MemoryKind : uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,    // made by a forward pass and alive at its end: what backward needs
  kTemporaries,    // all else that a pass makes
  kCommunication,  // made in a range "communication" or by an operator of c10d
  kOther,          // made outside of passes: inputs, tables
};
inline constexpr int kMemoryKinds = 7;
const char* name_of(MemoryKind kind);  // "parameters", ..., "optimizer state", ...

struct MemoryFrame {
  std::string function, file;
  int64_t line = 0;  // 0: unknown
};

struct MemorySite {
  std::string ranges;            // "step/forward/layers.3/norm", outermost first; empty: none
  std::string operators;         // "aten::linear/aten::mm", outermost first; empty: none
  std::vector<uint32_t> frames;  // of MemoryTrace::frames, innermost first
};

inline constexpr uint32_t kNoEvent = std::numeric_limits<uint32_t>::max();

struct Allocation {
  uint64_t address = 0;
  int64_t bytes = 0;
  uint32_t site = 0, shape = 0;  // of MemoryTrace::sites and ::shapes
  uint32_t begin = kNoEvent;     // event that made it; kNoEvent: it was there before
  uint32_t end = kNoEvent;       // event that freed it; kNoEvent: it was there at the end
  MemoryKind kind = MemoryKind::kOther;
  bool labelled = false;  // its kind was told, not concluded
};

struct MemoryEvent {
  double seconds = 0;       // from the beginning of the trace
  uint32_t allocation = 0;  // of MemoryTrace::allocations
  bool is_free = false;
};

// A stretch of events [begin, end).
struct EventRange {
  uint32_t begin = 0, end = 0;
};

// A range (ranges.h) of the thread that began the trace.
struct MemoryRange {
  std::string path;  // "step/forward"
  EventRange events;
  double begin = 0, end = 0;  // seconds
};

struct MemoryTrace {
  std::vector<Allocation> allocations;
  std::vector<MemoryEvent> events;  // in order
  std::vector<MemoryRange> ranges;  // in the order in which they began
  std::vector<MemorySite> sites = {{}};
  std::vector<MemoryFrame> frames;
  std::vector<std::string> shapes = {""};  // "float32 (4, 128, 768)"; the first: unknown
  bool timed = true;                       // false: `seconds` counts events

  EventRange all() const { return {0, static_cast<uint32_t>(events.size())}; }
};

using KindBytes = std::array<int64_t, kMemoryKinds>;
int64_t total(const KindBytes& bytes);

// What was there after an event.
struct MemoryMoment {
  uint32_t event = kNoEvent;  // kNoEvent: before the first one
  double seconds = 0;
  KindBytes bytes = {};
};

// Before the first event of the window.
MemoryMoment before(const MemoryTrace& trace, EventRange window);

// The moment of the window at which most was there; the first of equals. What was there before its
// first event counts.
MemoryMoment peak(const MemoryTrace& trace, EventRange window);

// At most 2 `columns` + 1 moments: of each equal stretch of the window's time that has events the
// greatest and the last, so that no peak is lost; the first is before().
std::vector<MemoryMoment> timeline(const MemoryTrace& trace, EventRange window, int columns);

// Gives a kind to each allocation without a label, as MemoryKind says. Passes are the ranges whose
// last name is "forward", "backward" or "optimizer".
void conclude_kinds(MemoryTrace& trace);

// The last range of this path; nullptr if there is none.
const MemoryRange* find_range(const MemoryTrace& trace, std::string_view path);
// Whether `ranges` is `path` or lies in it.
bool is_within(std::string_view ranges, std::string_view path);

// The function of ours nearest to the allocation ("flashstep::rms_norm", with file and line where
// they are known); in a snapshot of a Python program that function of it which is not PyTorch's.
// Empty if none is known.
std::string source_of(const MemoryTrace& trace, const MemorySite& site);
// "aten::linear > aten::mm": the outermost operator, and the innermost that does more than to make
// room. Where that is all that is known of it: the source.
std::string maker_of(const MemoryTrace& trace, const MemorySite& site);

}  // namespace flashstep::measure
