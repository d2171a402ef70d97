#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/trace/json_scanner.h"
#include "flashstep/trace/trace_events.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {
namespace {

constexpr size_t kStride = size_t{64} << 20;  // bytes between two reports, and releases of memory
constexpr uint32_t kStreamsPerDevice = 1 << 16;  // more than a device has

// An object of "traceEvents" as it is read; texts are views of the file.
struct RawEvent {
  std::string_view phase, category, name;
  std::string_view shapes, dtypes;  // JSON of "Input Dims" and "Input type"
  int64_t thread = 0, begin_ns = 0, duration_ns = 0;
  int64_t id = 0, correlation = 0, sequence = -1, forward_thread = 0;
  int64_t device = 0, stream = -1;
};

// A shape that no memory holds would make numbers of work that are none.
bool is_tensor(const Operand& operand) {
  constexpr double kMostElements = 0x1p53;
  double elements = 1;
  for (const int64_t length : operand.shape) {
    if (length < 0) return false;
    elements *= static_cast<double>(std::max<int64_t>(length, 1));
  }
  return elements <= kMostElements;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view source)
      : scanner_(text, source), size_(text.size()) {}

  // `passed(offset)` is told now and then how far it has come.
  template <typename Passed>
  TraceEvents read(const Passed& passed) {
    const auto events = [&] {
      scanner_.array([&] {
        read_event();
        if (scanner_.offset() < next_report_) return;
        if (next_report_ == kStride) reserve_events();
        passed(scanner_.offset());
        next_report_ += kStride;
      });
    };
    if (scanner_.peek() == '[') {  // the format's short form
      events();
    } else {
      scanner_.object([&](std::string_view key) {
        if (key == "traceEvents") {
          events();
        } else {
          scanner_.value();
        }
      });
    }
    require(!result_.events.empty(), "[trace] expected operators, ranges or kernels in ", source(),
            ", got none");
    name_forward_threads();
    return std::move(result_);
  }

 private:
  std::string_view source() const { return scanner_.source(); }

  // By those of the beginning: a vector that grows by doubling holds its content twice.
  void reserve_events() {
    const double share = static_cast<double>(scanner_.offset()) / static_cast<double>(size_);
    constexpr double kMargin = 1.1;
    result_.events.reserve(
        static_cast<size_t>(kMargin * static_cast<double>(result_.events.size()) / share));
  }

  void read_event() {
    RawEvent raw;
    scanner_.object([&](std::string_view key) {
      if (key == "ph") {
        raw.phase = scanner_.text();
      } else if (key == "cat") {
        raw.category = scanner_.text();
      } else if (key == "name") {
        raw.name = scanner_.text();
      } else if (key == "tid") {
        scanner_.scaled(0, raw.thread);
      } else if (key == "ts") {
        scanner_.scaled(3, raw.begin_ns);
      } else if (key == "dur") {
        scanner_.scaled(3, raw.duration_ns);
      } else if (key == "args" && scanner_.peek() == '{') {
        read_arguments(raw);
      } else {
        scanner_.value();
      }
    });
    if (raw.phase != "X") return;
    if (const auto kind = kind_of_category(raw.category)) add(raw, *kind);
  }

  void read_arguments(RawEvent& raw) {
    scanner_.object([&](std::string_view key) {
      if (key == "External id") {
        scanner_.scaled(0, raw.id);
      } else if (key == "correlation") {
        scanner_.scaled(0, raw.correlation);
      } else if (key == "Sequence number") {
        scanner_.scaled(0, raw.sequence);
      } else if (key == "Fwd thread id") {
        scanner_.scaled(0, raw.forward_thread);
      } else if (key == "device") {
        scanner_.scaled(0, raw.device);
      } else if (key == "stream") {
        scanner_.scaled(0, raw.stream);
      } else if (key == "Input Dims") {
        raw.shapes = scanner_.value();
      } else if (key == "Input type") {
        raw.dtypes = scanner_.value();
      } else {
        scanner_.value();
      }
    });
  }

  void add(const RawEvent& raw, EventKind kind) {
    TraceEvent event;
    event.kind = kind;
    // Differences of any two times must fit into 64 bits; 2^62 ns are 146 years.
    constexpr int64_t kFarthest = (int64_t{1} << 62) - 1;
    const int64_t duration = std::max<int64_t>(raw.duration_ns, 0);
    if (raw.begin_ns < -kFarthest || raw.begin_ns > kFarthest - duration) {
      scanner_.fail("an event within 146 years of 0 before this place");
    }
    event.begin_ns = raw.begin_ns;
    event.end_ns = raw.begin_ns + duration;
    event.name = raw.name.find('\\') == raw.name.npos ? result_.names.index(raw.name)
                                                      : result_.names.index(unescaped(raw.name));
    event.id = static_cast<uint64_t>(raw.id);
    event.correlation = static_cast<uint64_t>(raw.correlation);
    event.sequence = raw.sequence;
    if (is_device_event(event)) {
      const int64_t stream = raw.stream >= 0 ? raw.stream : raw.thread;
      event.lane = static_cast<uint32_t>(raw.device) * kStreamsPerDevice +
                   static_cast<uint32_t>(stream) % kStreamsPerDevice;
    } else {
      event.lane = static_cast<uint32_t>(raw.thread);
    }
    if (raw.forward_thread > 0) event.forward_thread = static_cast<uint32_t>(raw.forward_thread);
    if (kind == EventKind::kOperator && !raw.shapes.empty()) add_work(raw, event);
    result_.events.push_back(event);
  }

  // Most operators are views and wrappers: which ones is found out once a name.
  bool may_work(uint32_t name) {
    if (name >= may_work_.size()) may_work_.resize(result_.names.size(), -1);
    if (may_work_[name] < 0) may_work_[name] = operator_works(result_.names[name]) ? 1 : 0;
    return may_work_[name] == 1;
  }

  void add_work(const RawEvent& raw, TraceEvent& event) {
    if (!may_work(event.name)) return;
    operands_.clear();
    std::vector<int64_t> element_bytes;  // of each argument
    JsonScanner dtypes(raw.dtypes.empty() ? "[]" : raw.dtypes, source());
    dtypes.array([&] {
      const std::string_view dtype = dtypes.peek() == '"' ? dtypes.text() : dtypes.value();
      element_bytes.push_back(profiled_element_bytes(dtype));
    });
    JsonScanner shapes(raw.shapes, source());
    size_t arguments = 0;
    const auto add_operand = [&](JsonScanner& lengths) {
      Operand& operand = operands_.emplace_back();
      if (arguments < element_bytes.size()) operand.element_bytes = element_bytes[arguments];
      lengths.array([&] {
        int64_t length = 0;
        if (lengths.scaled(0, length)) operand.shape.push_back(length);
      });
    };
    // [[8, 64], [], [[8, 64], [64]]]: a tensor, a number, a list of tensors.
    shapes.array([&] {
      const std::string_view text = shapes.value();
      JsonScanner argument(text, source());
      if (text.find('[', 1) != text.npos) {
        argument.array([&] { add_operand(argument); });
      } else if (text.front() == '[') {
        add_operand(argument);
      }
      ++arguments;
    });
    if (!std::ranges::all_of(operands_, is_tensor)) return;
    const OperatorWork work = operator_work(result_.names[event.name], operands_);
    event.flops = work.flops;
    event.bytes = work.bytes;
  }

  // The file numbers forward threads from 1 on in the order in which they first ran operators, and
  // the threads themselves by what the system calls them.
  void name_forward_threads() {
    std::map<uint32_t, int64_t> first_ns;  // of threads that made nodes
    for (const TraceEvent& event : result_.events) {
      if (event.sequence < 0 || event.forward_thread != kNoThread) continue;
      const auto [at, is_new] = first_ns.try_emplace(event.lane, event.begin_ns);
      if (!is_new) at->second = std::min(at->second, event.begin_ns);
    }
    std::vector<std::pair<int64_t, uint32_t>> threads;
    for (const auto& [lane, begin] : first_ns) threads.emplace_back(begin, lane);
    std::ranges::sort(threads);
    std::map<uint32_t, uint32_t> lane_of;
    for (const TraceEvent& event : result_.events) {
      if (event.forward_thread != kNoThread) lane_of.try_emplace(event.forward_thread, 0);
    }
    size_t next = 0;
    for (auto& [number, lane] : lane_of) {
      lane = threads.empty() ? kNoThread : threads[std::min(next++, threads.size() - 1)].second;
    }
    for (TraceEvent& event : result_.events) {
      if (event.forward_thread != kNoThread) event.forward_thread = lane_of[event.forward_thread];
    }
  }

  JsonScanner scanner_;
  size_t size_;  // of the text
  TraceEvents result_;
  std::vector<signed char> may_work_;  // by name: unknown, no, yes
  std::vector<Operand> operands_;
  size_t next_report_ = kStride;
};

}  // namespace

TraceEvents read_chrome_trace(const std::filesystem::path& path, const ProgressFunction& progress) {
  const MappedFile file(path);
  return Reader(file.bytes(), path.string()).read([&](size_t offset) {
    file.release_before(offset);
    if (progress) progress(offset, file.size_bytes());
  });
}

TraceEvents parse_chrome_trace(std::string_view json, const std::string& source) {
  return Reader(json, source).read([](size_t) {});
}

uint32_t Names::index(std::string_view name) {
  const auto known = indices_.find(name);
  if (known != indices_.end()) return known->second;
  const uint32_t index = size();
  texts_.emplace_back(name);
  indices_.emplace(texts_.back(), index);
  return index;
}

std::optional<EventKind> kind_of_category(std::string_view category) {
  if (category == "cpu_op") return EventKind::kOperator;
  if (category == "kernel") return EventKind::kKernel;
  if (category == "cuda_runtime" || category == "cuda_driver") return EventKind::kLaunch;
  if (category == "user_annotation") return EventKind::kRange;
  if (category == "gpu_memcpy" || category == "gpu_memset") return EventKind::kCopy;
  return std::nullopt;
}

bool is_device_event(const TraceEvent& event) {
  return event.kind == EventKind::kKernel || event.kind == EventKind::kCopy;
}

measure::Span span_of(const TraceEvent& event) {
  return {static_cast<double>(event.begin_ns) * 1e-9, static_cast<double>(event.end_ns) * 1e-9};
}

}  // namespace flashstep::tools
