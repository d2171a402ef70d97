#include "flashstep/measure/lane_chart.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::measure {
namespace {

using namespace internal;

constexpr double kLaneHeight = 22, kLaneGap = 5, kGroupTitle = 20, kGroupGap = 10;
constexpr double kWidestName = 200;
constexpr double kNarrowestSpan = 0.3;  // pixels: a shorter span is drawn so wide, to be seen

bool is_finite(const Span& span) { return std::isfinite(span.begin) && std::isfinite(span.end); }

// Those that are finite; gaps of at most `gap` seconds are closed.
std::vector<Span> drawn_spans(const Lane& lane, double gap = 0) {
  std::vector<Span> spans = lane.spans;
  std::erase_if(spans, [](const Span& span) { return !is_finite(span); });
  return merged(std::move(spans), gap);
}

double last_end_ms(const LaneChart& chart) {
  double end = 0;
  for (const LaneGroup& group : chart.groups) {
    for (const Lane& lane : group.lanes) {
      for (const Span& span : drawn_spans(lane)) end = std::max(end, span.end * 1e3);
    }
  }
  return end > 0 ? end : 1;
}

// The widest of what `text_of` says of a lane.
template <typename Text>
double widest(const LaneChart& chart, const Text& text_of) {
  double width = 0;
  for (const LaneGroup& group : chart.groups) {
    for (const Lane& lane : group.lanes)
      width = std::max(width, text_width(text_of(lane), kTextSize));
  }
  return std::min(width, kWidestName);
}

void draw_lane(SvgWriter& svg, const Lane& lane, const std::string& color, const Frame& frame,
               double top) {
  const double middle = top + kLaneHeight / 2 + kTextSize * kBaseline;
  svg.text(frame.left - 8, middle, fit_text(lane.name, kTextSize, kWidestName, Cut::kMiddle),
           {.size = kTextSize, .anchor = "end", .fill = kInk});
  svg.rect(frame.left, top, frame.right - frame.left, kLaneHeight, "fill=\"#f4f4f4\"");
  // Gaps that nobody can see are closed: thousands of kernels stand side by side.
  const double gap =
      kNarrowestSpan * (frame.x.high - frame.x.low) / (frame.right - frame.left) * 1e-3;
  std::string path;
  for (const Span& span : drawn_spans(lane, gap)) {
    const double left = frame.x_at(std::max(span.begin * 1e3, 0.0));
    const double right = std::max(frame.x_at(std::max(span.end * 1e3, 0.0)), left + kNarrowestSpan);
    path += str("M", fixed(left, 2), " ", svg_number(top), "H", fixed(right, 2), "v",
                svg_number(kLaneHeight), "H", fixed(left, 2), "z");
  }
  if (!path.empty()) svg.path(path, str("fill=\"", color, "\""));
  svg.text(frame.right + 8, middle, lane.label, {.size = kTextSize, .fill = kSoftInk});
}

std::string description(const LaneChart& chart) {
  std::vector<std::string> names;
  for (const LaneGroup& group : chart.groups) {
    for (const Lane& lane : group.lanes)
      names.push_back(str(group.title, ", ", lane.name, " ", lane.label));
  }
  return join(names, "; ");
}

}  // namespace

std::string to_svg(const LaneChart& chart) {
  SvgWriter svg;
  double y = draw_heading(svg, chart.title, chart.subtitle, chart.width) + 6;
  Frame frame;
  frame.x = {0, last_end_ms(chart)};
  frame.left = kMargin + widest(chart, [](const Lane& lane) { return lane.name; }) + 8;
  const double labels = widest(chart, [](const Lane& lane) { return lane.label; });
  frame.right = chart.width - kMargin - (labels > 0 ? labels + 8 : 6);
  for (const LaneGroup& group : chart.groups) {
    svg.text(frame.left, y + 14, group.title, {.size = kTextSize, .fill = kInk, .bold = true});
    y += kGroupTitle;
    for (const Lane& lane : group.lanes) {
      draw_lane(svg, lane, palette_color(lane.color), frame, y);
      y += kLaneHeight + kLaneGap;
    }
    y += kGroupGap;
  }
  frame.bottom = y;
  draw_x_axis(svg, frame);
  svg.text((frame.left + frame.right) / 2, y + 38, "ms",
           {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
  y = draw_footnote(svg, chart.footnote, chart.width, y + 48);
  return document_head(chart.title, description(chart), chart.width, std::ceil(y + 8)) +
         svg.take() + "</svg>\n";
}

}  // namespace flashstep::measure
