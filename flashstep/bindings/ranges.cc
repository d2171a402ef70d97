// Named stretches of a Python program's time: an object, because the profiler records a call of an
// operator itself, which would end inside the range that it has begun.
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "flashstep/bindings/border.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/error.h"
#include "flashstep/measure/profiler_ranges.h"
#include "flashstep/profiling.h"

namespace flashstep::bindings {
namespace {

struct OpenRange {
  std::string name;
  RangeListener* listener;  // whoever heard the begin also hears the end, if it is still there
};

std::deque<OpenRange>& open_ranges() {  // of this thread, whose names stay where they are
  thread_local std::deque<OpenRange> ranges;
  return ranges;
}

RangeListener* current() { return internal::range_listener.load(std::memory_order_acquire); }

class RangesObject : public torch::CustomClassHolder {
 public:
  // Heard by whoever listens to the library's ranges, else by LibTorch's profiler and NVTX.
  void begin(std::string name) {
    RangeListener* listener = current() != nullptr ? current() : &measure::profiler_listener();
    open_ranges().push_back({std::move(name), listener});
    listener->begin_range(open_ranges().back().name.c_str());
  }
  void end() {
    require(!open_ranges().empty(), "[profiling] expected a range to end on this thread, got none");
    RangeListener* listener = open_ranges().back().listener;
    open_ranges().pop_back();
    if (listener == &measure::profiler_listener() || listener == current()) listener->end_range();
  }
  // From here on the profiler hears of the library's own ranges too, or no longer.
  void listen(bool on) {
    listening_.reset();
    if (!on) return;
    require(current() == nullptr, "[profiling] expected one recording at a time");
    listening_.emplace();
  }

 private:
  std::optional<measure::ProfilerRanges> listening_;
};

}  // namespace

void register_ranges(torch::Library& library) {
  library.class_<RangesObject>("Ranges")
      .def(torch::init<>())
      .def("begin", for_python(&RangesObject::begin))
      .def("end", for_python(&RangesObject::end))
      .def("listen", for_python(&RangesObject::listen));
}

}  // namespace flashstep::bindings
