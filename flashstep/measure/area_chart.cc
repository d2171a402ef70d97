#include "flashstep/measure/area_chart.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::measure {
namespace {

using namespace internal;

constexpr double kSpanHeight = 20;    // above the data, for the names of spans
constexpr double kNarrowestGap = 34;  // pixels between ticks of the y axis, at least

void check(const AreaChart& chart) {
  for (const AreaLayer& layer : chart.layers) {
    require(layer.values.size() == chart.x.size(), "[plot] expected ", chart.x.size(),
            " values in layer \"", layer.name, "\", got ", layer.values.size());
  }
  require(
      std::is_sorted(chart.x.begin(), chart.x.end()) &&
          std::all_of(chart.x.begin(), chart.x.end(), [](double x) { return std::isfinite(x); }),
      "[plot] expected finite, ascending x in \"", chart.title, "\"");
}

double amount(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

bool is_drawn(const AreaLayer& layer) {
  return std::any_of(layer.values.begin(), layer.values.end(),
                     [](double value) { return amount(value) > 0; });
}

// The layers as series of a plot, for its legend.
Plot legend_of(const AreaChart& chart) {
  Plot plot;
  for (const AreaLayer& layer : chart.layers) {
    if (!is_drawn(layer)) continue;
    Series series;
    series.name = layer.name;
    series.kind = Series::Kind::kBars;
    series.color = layer.color;
    plot.series.push_back(series);
  }
  return plot;
}

double highest_sum(const AreaChart& chart) {
  double highest = 0;
  for (size_t i = 0; i < chart.x.size(); ++i) {
    double sum = 0;
    for (const AreaLayer& layer : chart.layers) sum += amount(layer.values[i]);
    highest = std::max(highest, sum);
  }
  return highest > 0 ? highest : 1;
}

// A staircase through (x[i], level[i]), from the left to the right or back.
std::string staircase(const std::vector<double>& x, const std::vector<double>& level,
                      const Frame& frame, bool forward) {
  std::string path;
  const size_t n = x.size();
  const auto across = [&](size_t i) { path += str("H", svg_number(frame.x_at(x[i]))); };
  const auto up = [&](size_t i) { path += str("V", svg_number(frame.y_at(level[i]))); };
  if (forward) {
    path = str("M", svg_number(frame.x_at(x[0])), " ", svg_number(frame.y_at(level[0])));
    for (size_t i = 1; i < n; ++i) {
      if (level[i] == level[i - 1] && i + 1 < n) continue;
      across(i);
      up(i);
    }
    return path;
  }
  up(n - 1);
  for (size_t i = n - 1; i > 0; --i) {
    if (level[i] == level[i - 1] && i > 1) continue;
    across(i);
    up(i - 1);
  }
  across(0);
  return path + "z";
}

void draw_layers(SvgWriter& svg, const AreaChart& chart, const Frame& frame,
                 const std::vector<Pen>& pens) {
  if (chart.x.empty()) return;
  std::vector<double> below(chart.x.size(), 0.0);
  size_t pen = 0;
  for (const AreaLayer& layer : chart.layers) {
    if (!is_drawn(layer)) continue;
    std::vector<double> above = below;
    for (size_t i = 0; i < above.size(); ++i) above[i] += amount(layer.values[i]);
    svg.path(staircase(chart.x, above, frame, true) + staircase(chart.x, below, frame, false),
             str("fill=\"", pens[pen++].color, "\" fill-opacity=\"0.85\""));
    below = std::move(above);
  }
}

// A name that is wider than its span reaches back over the one before, as far as that is empty.
void draw_spans(SvgWriter& svg, const AreaChart& chart, const Frame& frame) {
  const double top = frame.top - kSpanHeight;
  const double baseline = top + (kSpanHeight - 4) / 2 + kTextSize * kBaseline;
  double written = frame.left;  // up to here
  for (const AreaSpan& span : chart.spans) {
    const double left = std::clamp(frame.x_at(span.begin), frame.left, frame.right);
    const double right = std::clamp(frame.x_at(span.end), frame.left, frame.right);
    for (const double x : {left, right}) {
      svg.line(x, top, x, frame.bottom,
               "stroke=\"#555555\" stroke-width=\"1\" stroke-dasharray=\"2 3\"");
    }
    svg.rect(left, top, right - left, kSpanHeight - 4, "fill=\"#eeeeee\"");
    const double width = text_width(span.label, kTextSize);
    if (width + 4 <= right - left) {
      svg.text((left + right) / 2, baseline, span.label,
               {.size = kTextSize, .anchor = "middle", .fill = kInk});
      written = (left + right + width) / 2;
    } else if (written + 8 + width <= right) {
      svg.text(right, baseline, span.label,
               {.size = kTextSize, .anchor = "end", .fill = kInk, .halo = true});
      written = right;
    }
  }
}

std::string description(const AreaChart& chart) {
  std::vector<std::string> names;
  for (const AreaLayer& layer : chart.layers) {
    if (is_drawn(layer)) names.push_back(layer.name);
  }
  return str(chart.y_label, " over ", chart.x_label, ": ", join(names, "; "));
}

Interval x_interval(const AreaChart& chart) {
  if (chart.x.empty()) return {0, 1};
  const double low = chart.x.front(), high = chart.x.back();
  return {low, high > low ? high : low + 1};
}

}  // namespace

std::string to_svg(const AreaChart& chart) {
  check(chart);
  const Plot named = legend_of(chart);
  const Legend legend = lay_out_legend(named, chart.width - 2 * kMargin);
  const std::vector<Pen> pens = pens_of(named.series);
  SvgWriter svg;
  double y = draw_heading(svg, chart.title, chart.subtitle, chart.width);
  draw_legend(svg, named, legend, pens, kMargin, y + 5);
  y += legend.height + 5;
  svg.text(kMargin, y + 18, chart.y_label, {.size = kTextSize, .fill = kSoftInk});
  Frame frame;
  frame.top = y + 28 + (chart.spans.empty() ? 0 : kSpanHeight);
  frame.bottom = chart.height + legend.extra_height - 90;
  frame.x = x_interval(chart);
  frame.y = {0, highest_sum(chart) * 1.04};
  const auto ticks = choose_ticks(frame.y, frame.y_scale,
                                  static_cast<int>((frame.bottom - frame.top) / kNarrowestGap));
  frame.left = kMargin + widest_label(ticks) + 8;
  frame.right = chart.width - kMargin - 6;
  draw_y_axis(svg, frame, ticks);
  draw_layers(svg, chart, frame, pens);
  draw_spans(svg, chart, frame);
  draw_x_axis(svg, frame);
  if (chart.x.empty()) {
    svg.text((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "no data",
             {.size = 15, .anchor = "middle", .fill = kSoftInk});
  }
  svg.text((frame.left + frame.right) / 2, frame.bottom + 38, chart.x_label,
           {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
  y = draw_footnote(svg, chart.footnote, chart.width, frame.bottom + 48);
  return document_head(chart.title, description(chart), chart.width, std::ceil(y + 8)) +
         svg.take() + "</svg>\n";
}

}  // namespace flashstep::measure
