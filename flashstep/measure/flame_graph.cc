#include "flashstep/measure/flame_graph.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::measure {
namespace {

using namespace internal;

constexpr double kFrameHeight = 20;
constexpr double kNarrowestFrame =
    0.4;                          // pixels: narrower frames, and what stands on them, are left out
constexpr double kTextRoom = 24;  // narrower frames have no text
constexpr const char* kLightFill = "#e3e3e3";
constexpr const char* kDarkFill = "#b9b9b9";

bool is_drawn(const FlameFrame& frame) { return std::isfinite(frame.value) && frame.value > 0; }

int depth(const FlameFrame& frame) {
  int below = 0;
  for (const FlameFrame& child : frame.children) {
    if (is_drawn(child)) below = std::max(below, depth(child));
  }
  return below + 1;
}

std::string lightened(const std::string& color) {  // "#rrggbb" halfway to white, for black text
  std::string result = "#";
  for (size_t i = 1; i + 1 < color.size(); i += 2) {
    const int part = (std::stoi(color.substr(i, 2), nullptr, 16) + 255) / 2;
    constexpr const char* kDigits = "0123456789abcdef";
    result += {kDigits[part / 16], kDigits[part % 16]};
  }
  return result;
}

std::string fill_of(int color) {
  if (color == kDarkGrey) return kDarkFill;
  return color < 0 ? kLightFill : lightened(palette_color(color));
}

// Draws `frame` and what stands on it; `bottom` is where its lower edge is.
void draw_frame(SvgWriter& svg, const FlameGraph& graph, const FlameFrame& frame, double left,
                double width, double bottom) {
  if (width < kNarrowestFrame) return;
  const double share = 100 * frame.value / graph.root.value;
  const std::string label = str(frame.name, " ", fixed(share, 1), " %");
  svg.open("g");
  svg.title(
      str(frame.name, ": ", fixed(frame.value, 3), " ", graph.unit, ", ", fixed(share, 2), " %"));
  svg.rect(left, bottom - kFrameHeight + 1, std::max(width - 0.5, kNarrowestFrame),
           kFrameHeight - 1, str("rx=\"2\" fill=\"", fill_of(frame.color), "\""));
  if (width >= kTextRoom) {
    svg.text(left + 3, bottom - kFrameHeight / 2 + kTextSize * kBaseline,
             fit_text(label, kTextSize - 1, width - 6, Cut::kEnd),
             {.size = kTextSize - 1, .fill = kInk});
  }
  svg.close("g");
  double at = left;
  for (const FlameFrame& child : frame.children) {
    if (!is_drawn(child)) continue;
    const double room = width * std::min(child.value / frame.value, 1.0);
    draw_frame(svg, graph, child, at, room, bottom - kFrameHeight);
    at += room;
  }
}

// The meaning of the colours, in one line; returns where it ends.
double draw_keys(SvgWriter& svg, const FlameGraph& graph, double top) {
  if (graph.keys.empty()) return top;
  double x = kMargin;
  for (const FlameGraph::Key& key : graph.keys) {
    svg.rect(x, top, 12, 12, str("rx=\"2\" fill=\"", fill_of(key.color), "\""));
    svg.text(x + 17, top + 6 + kTextSize * kBaseline, key.name,
             {.size = kTextSize, .fill = kSoftInk});
    x += 17 + text_width(key.name, kTextSize) + 16;
  }
  return top + 22;
}

}  // namespace

FlameFrame& child_frame(FlameFrame& parent, const std::string& name, int color) {
  const auto known = std::find_if(parent.children.begin(), parent.children.end(),
                                  [&](const FlameFrame& child) { return child.name == name; });
  if (known != parent.children.end()) return *known;
  parent.children.push_back({name, 0, color, {}});
  return parent.children.back();
}

void add_up(FlameFrame& frame) {
  for (FlameFrame& child : frame.children) {
    add_up(child);
    frame.value += child.value;
  }
}

std::string to_svg(const FlameGraph& graph) {
  SvgWriter svg;
  double y = draw_heading(svg, graph.title, graph.subtitle, graph.width) + 6;
  y = draw_keys(svg, graph, y);
  if (is_drawn(graph.root)) {
    y += kFrameHeight * depth(graph.root);
    draw_frame(svg, graph, graph.root, kMargin, graph.width - 2 * kMargin, y);
  }
  y = draw_footnote(svg, graph.footnote, graph.width, y + 14);
  const std::string description =
      str(graph.root.name, ", ", fixed(graph.root.value, 3), " ", graph.unit);
  return document_head(graph.title, description, graph.width, std::ceil(y + 8)) + svg.take() +
         "</svg>\n";
}

}  // namespace flashstep::measure
