#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/report/memory.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

using measure::MemoryKind;

// From the bottom up: what stays, then what comes and goes.
struct Layer {
  MemoryKind kind;
  int color;  // of the palette
};
constexpr Layer kLayers[] = {{MemoryKind::kOther, measure::kGrey}, {MemoryKind::kParameters, 0},
                             {MemoryKind::kOptimizerState, 4},     {MemoryKind::kGradients, 2},
                             {MemoryKind::kActivations, 1},        {MemoryKind::kTemporaries, 5},
                             {MemoryKind::kCommunication, 3}};

constexpr int kMoments = 1000;  // of moments: about the picture's pixels

bool is_pass(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  return name == "forward" || name == "backward" || name == "optimizer";
}

std::vector<measure::AreaSpan> passes(const measure::MemoryTrace& trace, measure::EventRange window,
                                      double start) {
  std::vector<measure::AreaSpan> spans;
  for (const measure::MemoryRange& range : trace.ranges) {
    const bool inside = range.events.begin >= window.begin && range.events.end <= window.end;
    if (!inside || !is_pass(range.path)) continue;
    spans.push_back({(range.begin - start) * 1e3, (range.end - start) * 1e3,
                     range.path.substr(range.path.find_last_of('/') + 1)});
  }
  return spans;
}

}  // namespace

measure::AreaChart memory_timeline(const measure::MemoryTrace& trace, measure::EventRange window,
                                   const std::string& title, const std::string& footnote) {
  const auto moments = measure::timeline(trace, window, kMoments);
  const auto peak = measure::peak(trace, window);
  const auto most = static_cast<double>(measure::total(peak.bytes));
  const double unit = most >= 4 * kGiB ? kGiB : kMiB;
  const double start = moments.front().seconds;
  measure::AreaChart chart;
  chart.title = title;
  chart.subtitle = str("Peak ", human_bytes(static_cast<uint64_t>(most)));
  if (trace.timed) chart.subtitle += str(" after ", fixed((peak.seconds - start) * 1e3, 1), " ms");
  chart.footnote = footnote;
  chart.x_label = trace.timed ? "ms" : "allocations and frees";
  chart.y_label = unit == kGiB ? "GiB of tensors" : "MiB of tensors";
  const double scale = trace.timed ? 1e3 : 1;
  for (const auto& moment : moments) chart.x.push_back((moment.seconds - start) * scale);
  for (const auto& [kind, color] : kLayers) {
    measure::AreaLayer layer = {measure::name_of(kind), color, {}};
    for (const auto& moment : moments) {
      layer.values.push_back(static_cast<double>(moment.bytes[static_cast<size_t>(kind)]) / unit);
    }
    chart.layers.push_back(std::move(layer));
  }
  if (trace.timed) chart.spans = passes(trace, window, start);
  return chart;
}

}  // namespace flashstep::report
