#include "flashstep/measure/memory_recorder.h"

#include <atomic>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <execinfo.h>
#include <memory>

#include <torch/csrc/profiler/unwind/unwind.h>

#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"

namespace flashstep::measure {
namespace {

// Enough to get from the allocator through LibTorch's dispatcher to whoever called an operator.
constexpr int kStackDepth = 40;
constexpr size_t kLongestName = 160;  // of a function: templates of LibTorch fill pages

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 && name ? name.get() : symbol;
  if (text.size() > kLongestName) text = text.substr(0, kLongestName) + "...";
  return text;
}

// By the tables that dynamic linking needs, which are at hand: functions of one file only have no
// name there.
MemoryFrame frame_at(const void* return_address) {
  const char* address = static_cast<const char*>(return_address) - 1;  // within the call
  Dl_info info = {};
  if (dladdr(address, &info) == 0) return {"?", "?", 0};
  const std::string file = info.dli_fname != nullptr ? info.dli_fname : "?";
  if (info.dli_sname != nullptr) return {demangled(info.dli_sname), file, 0};
  const auto offset = address - static_cast<const char*>(info.dli_fbase);
  return {str("+0x", std::hex, offset), file, 0};
}

// The library or program that this function is in.
std::string own_file() {
  Dl_info info = {};
  const bool known = dladdr(reinterpret_cast<const void*>(&own_file), &info) != 0;
  return known && info.dli_fname != nullptr ? info.dli_fname : "";
}

// Files and lines of frames of our own, in a build that has them (-g1). LibTorch's libraries have
// none, and reading their tables takes long.
void find_lines(const std::vector<void*>& addresses, std::vector<MemoryFrame>& frames) {
  const std::string file = own_file();
  std::vector<size_t> own;
  std::vector<void*> own_addresses;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].file != file) continue;
    own.push_back(i);
    own_addresses.push_back(addresses[i]);
  }
  if (own.empty()) return;
  try {
    const auto found = torch::unwind::symbolize(own_addresses, torch::unwind::Mode::fast);
    for (size_t i = 0; i < found.size() && i < own.size(); ++i) {
      // Without a line it names the library and the place in it.
      if (found[i].lineno == 0 || found[i].filename.find(".so") != std::string::npos ||
          found[i].filename == file) {
        continue;
      }
      frames[own[i]].file = found[i].filename;
      frames[own[i]].line = static_cast<int64_t>(found[i].lineno);
    }
  } catch (const std::exception&) {
    // Tables that LibTorch cannot read: names without lines say enough.
  }
}

}  // namespace

Stack current_stack() {
  Stack stack(kStackDepth);
  stack.resize(static_cast<size_t>(backtrace(stack.data(), kStackDepth)));
  return stack;
}

MemoryRecorder::MemoryRecorder()
    : number_(next_number()), start_(steady_seconds()), main_(&thread()) {}

MemoryRecorder::Thread& MemoryRecorder::thread() {
  static thread_local Thread thread;
  if (thread.recorder != number_) thread = {number_, {}};
  return thread;
}

MemoryRecorder::Scope MemoryRecorder::scope() {
  const Thread& here = thread();
  return here.scopes.empty() ? Scope{main_ranges_, 0} : here.scopes.back();
}

double MemoryRecorder::seconds() const { return steady_seconds() - start_; }

uint32_t MemoryRecorder::path(uint32_t parent, std::string_view name) {
  std::string text = paths_[parent];
  if (!text.empty()) text += '/';
  text += name;
  const auto [slot, is_new] = path_ids_.try_emplace(text, static_cast<uint32_t>(paths_.size()));
  if (is_new) paths_.push_back(text);
  return slot->second;
}

// "step/backward" and a node made in "step/forward/layers.3": "step/backward/layers.3".
uint32_t MemoryRecorder::backward_path(uint32_t base, int64_t node) {
  const auto after = forward_paths_.upper_bound(static_cast<uint64_t>(node));
  if (after == forward_paths_.begin()) return base;
  const std::string made_in = paths_[std::prev(after)->second];
  constexpr std::string_view kForward = "forward/";
  const size_t at = made_in.find(kForward);
  if (at == std::string::npos || (at > 0 && made_in[at - 1] != '/')) return base;
  return path(base, std::string_view(made_in).substr(at + kForward.size()));
}

uint32_t MemoryRecorder::site(const Stack& stack) {
  const auto [stack_slot, is_new_stack] =
      stack_ids_.try_emplace(stack, static_cast<uint32_t>(stacks_.size()));
  if (is_new_stack) stacks_.push_back(&stack_slot->first);  // nodes of a map stay where they are
  const Scope here = scope();
  const auto [slot, is_new] =
      site_ids_.try_emplace({here.ranges, here.operators, stack_slot->second},
                            static_cast<uint32_t>(trace_.sites.size()));
  if (is_new) {
    trace_.sites.push_back({paths_[here.ranges], paths_[here.operators], {}});
    site_stacks_.push_back(stack_slot->second);
  }
  return slot->second;
}

void MemoryRecorder::allocated(uint64_t address, int64_t bytes, const Stack& stack) {
  Allocation allocation;
  allocation.address = address;
  allocation.bytes = bytes;
  allocation.site = site(stack);
  allocation.begin = next_event();
  const auto index = static_cast<uint32_t>(trace_.allocations.size());
  trace_.allocations.push_back(allocation);
  trace_.events.push_back({seconds(), index, false});
  live_[address] = index;
}

void MemoryRecorder::freed(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;  // from before the trace
  trace_.allocations[found->second].end = next_event();
  trace_.events.push_back({seconds(), found->second, true});
  live_.erase(found);
}

void MemoryRecorder::label(uint64_t address, MemoryKind kind) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  Allocation& allocation = trace_.allocations[found->second];
  if (allocation.labelled) return;
  allocation.kind = kind;
  allocation.labelled = true;
}

void MemoryRecorder::shape(uint64_t address, const std::string& text) {
  const auto found = live_.find(address);
  if (found == live_.end() || trace_.allocations[found->second].shape != 0) return;
  const auto [slot, is_new] =
      shape_ids_.try_emplace(text, static_cast<uint32_t>(trace_.shapes.size()));
  if (is_new) trace_.shapes.push_back(text);
  trace_.allocations[found->second].shape = slot->second;
}

void MemoryRecorder::begin_range(std::string_view name, uint64_t sequence) {
  const Scope outer = scope();
  Thread& here = thread();
  here.scopes.push_back({path(outer.ranges, name), outer.operators});
  if (&here != main_) return;
  main_ranges_ = here.scopes.back().ranges;
  forward_paths_[sequence] = main_ranges_;
  open_ranges_.push_back(trace_.ranges.size());
  const double now = seconds();
  trace_.ranges.push_back({paths_[main_ranges_], {next_event(), next_event()}, now, now});
}

void MemoryRecorder::end_range(uint64_t sequence) {
  pop();
  if (&thread() != main_) return;
  main_ranges_ = main_->scopes.empty() ? 0 : main_->scopes.back().ranges;
  forward_paths_[sequence] = main_ranges_;
  if (open_ranges_.empty()) return;  // it began before the trace
  MemoryRange& range = trace_.ranges[open_ranges_.back()];
  open_ranges_.pop_back();
  range.events.end = next_event();
  range.end = seconds();
}

void MemoryRecorder::begin_operator(std::string_view name, int64_t node) {
  const Scope outer = scope();
  const uint32_t ranges = node < 0 ? outer.ranges : backward_path(outer.ranges, node);
  thread().scopes.push_back({ranges, path(outer.operators, name)});
}

void MemoryRecorder::end_operator() { pop(); }

void MemoryRecorder::pop() {
  Thread& here = thread();
  if (!here.scopes.empty()) here.scopes.pop_back();  // else it began before the trace
}

void MemoryRecorder::resolve_frames() {
  std::unordered_map<void*, uint32_t> ids;
  std::vector<void*> addresses;
  for (size_t i = 1; i < trace_.sites.size(); ++i) {
    for (void* address : *stacks_[site_stacks_[i]]) {
      const auto [slot, is_new] =
          ids.try_emplace(address, static_cast<uint32_t>(trace_.frames.size()));
      if (is_new) {
        trace_.frames.push_back(frame_at(address));
        addresses.push_back(address);
      }
      trace_.sites[i].frames.push_back(slot->second);
    }
  }
  find_lines(addresses, trace_.frames);
}

MemoryTrace MemoryRecorder::take() {
  for (const size_t open : open_ranges_) {
    trace_.ranges[open].events.end = next_event();
    trace_.ranges[open].end = seconds();
  }
  resolve_frames();
  conclude_kinds(trace_);
  return std::move(trace_);
}

}  // namespace flashstep::measure
