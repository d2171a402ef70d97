// What stands around the data of a plot: intervals, ticks, grid, names of categories, the legend.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::measure::internal {
namespace {

constexpr const char* kAxisStyle = "stroke=\"#888888\" stroke-width=\"1\"";
constexpr double kSlantDegrees = -35, kSlantCosine = 0.82, kSlantSine = 0.58;
constexpr double kSlantedWidth = 150, kCategoryLine = 15, kCategoryGap = 6;
constexpr double kKeyWidth = 28, kEntryGap = 20, kLegendLine = 20;

std::vector<double> all_x(const Plot& plot) {
  std::vector<double> values;
  for (const Series& s : plot.series) values.insert(values.end(), s.x.begin(), s.x.end());
  for (const Reference& r : plot.references)
    if (r.vertical) values.push_back(r.value);
  return values;
}

std::vector<double> all_y(const Plot& plot) {
  std::vector<double> values;
  for (const Series& s : plot.series) values.insert(values.end(), s.y.begin(), s.y.end());
  for (const Reference& r : plot.references)
    if (!r.vertical) values.push_back(r.value);
  return values;
}

// Bars are lengths: the axis is linear, contains 0 and, if no bar is negative, begins there.
Interval bar_interval(std::vector<double> values) {
  values.push_back(0);
  Interval interval = interval_around(values, Scale::kLinear, 0.08);
  if (std::none_of(values.begin(), values.end(), [](double v) { return v < 0; })) interval.low = 0;
  return interval;
}

bool side_by_side(const std::vector<Tick>& ticks, const Frame& frame) {
  double previous_end = -INFINITY;
  for (const Tick& tick : ticks) {
    if (tick.label.empty()) continue;
    const double half = text_width(tick.label, kTextSize) / 2 + 5;
    const double center = frame.x_at(tick.value);
    if (center - half < previous_end) return false;
    previous_end = center + half;
  }
  return true;
}

// As many as stand side by side without touching.
std::vector<Tick> x_ticks(const Frame& frame) {
  std::vector<Tick> ticks;
  for (int wanted = static_cast<int>((frame.right - frame.left) / 80); wanted >= 1; --wanted) {
    ticks = choose_ticks(frame.x, frame.x_scale, wanted, frame.whole_x);
    if (side_by_side(ticks, frame)) break;
  }
  return ticks;
}

std::vector<std::string> category_lines(const std::string& name, double width) {
  return wrap_text(name, kTextSize, width - kCategoryGap, 3);
}

bool fits_upright(const std::string& name, double width) {
  return join(category_lines(name, width), " ") == name;
}

}  // namespace

void choose_intervals(const Plot& plot, Frame& frame) {
  const bool bars = std::any_of(plot.series.begin(), plot.series.end(),
                                [](const Series& s) { return s.kind == Series::Kind::kBars; });
  const std::vector<double> x = all_x(plot), y = all_y(plot);
  frame.categories = bars ? static_cast<int>(plot.categories.size()) : 0;
  frame.x_scale = bars ? Scale::kLinear : plot.x.scale;
  frame.y_scale = bars ? Scale::kLinear : plot.y.scale;
  frame.whole_x = std::all_of(x.begin(), x.end(), [](double v) { return v == std::floor(v); });
  frame.any_data =
      std::any_of(y.begin(), y.end(), [&](double v) { return drawable(v, frame.y_scale); });
  frame.x = interval_around(x, frame.x_scale, 0.015);
  // One whole number alone (the first step of a run) has its neighbours beside it.
  if (frame.whole_x && frame.x_scale == Scale::kLinear && frame.x.high - frame.x.low < 1)
    frame.x = {std::floor(frame.x.low), std::ceil(frame.x.high)};
  frame.y = bars ? bar_interval(y) : interval_around(y, frame.y_scale, 0.05);
}

double widest_label(const std::vector<Tick>& ticks) {
  double width = 0;
  for (const Tick& tick : ticks) width = std::max(width, text_width(tick.label, kTextSize));
  return width;
}

void draw_y_axis(SvgWriter& svg, const Frame& frame, const std::vector<Tick>& ticks) {
  for (const Tick& tick : ticks) {
    const double y = frame.y_at(tick.value);
    const bool minor = tick.label.empty();
    svg.line(frame.left, y, frame.right, y,
             str("stroke=\"", minor ? "#f2f2f2" : "#e2e2e2", "\" stroke-width=\"1\""));
    if (!minor)
      svg.text(frame.left - 8, y + kTextSize * kBaseline, tick.label,
               {.size = kTextSize, .anchor = "end", .fill = kSoftInk});
  }
}

void draw_x_axis(SvgWriter& svg, const Frame& frame) {
  svg.line(frame.left, frame.bottom, frame.right, frame.bottom, kAxisStyle);
  if (frame.categories > 0) return;
  for (const Tick& tick : x_ticks(frame)) {
    const double x = frame.x_at(tick.value);
    const bool minor = tick.label.empty();
    svg.line(x, frame.bottom, x, frame.bottom + (minor ? 3 : 5), kAxisStyle);
    if (minor) continue;
    // A wide label at the right end would leave the page: it is pushed back.
    const double center =
        std::min(x, frame.right + kMargin - text_width(tick.label, kTextSize) / 2);
    svg.text(center, frame.bottom + 19, tick.label,
             {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
  }
}

double draw_categories(SvgWriter& svg, const Plot& plot, const Frame& frame) {
  const double width = frame.category_width();
  const bool slanted = !std::all_of(plot.categories.begin(), plot.categories.end(),
                                    [&](const auto& name) { return fits_upright(name, width); });
  TextStyle style = {.size = kTextSize, .anchor = "middle", .fill = kSoftInk};
  double height = 0;
  for (int i = 0; i < frame.categories; ++i) {
    const std::string& name = plot.categories[static_cast<size_t>(i)];
    const double x = frame.category_center(i);
    if (slanted) {
      style.anchor = "end";
      style.rotate_degrees = kSlantDegrees;
      const double room = std::min(kSlantedWidth, (x - 4) / kSlantCosine);
      const std::string shown = fit_text(name, kTextSize, room, Cut::kMiddle);
      svg.text(x + 5, frame.bottom + 15, shown, style);
      height = std::max(height, text_width(shown, kTextSize) * kSlantSine + 18);
      continue;
    }
    double y = frame.bottom + 18;
    for (const std::string& line : category_lines(name, width)) {
      svg.text(x, y, line, style);
      y += kCategoryLine;
    }
    height = std::max(height, y - frame.bottom - kCategoryLine + 6);
  }
  return height;
}

Legend lay_out_legend(const Plot& plot, double width) {
  Legend legend;
  double x = 0, y = 0;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    if (plot.series[i].name.empty()) continue;
    const std::string text =
        fit_text(plot.series[i].name, kTextSize, width - kKeyWidth, Cut::kMiddle);
    const double needed = kKeyWidth + text_width(text, kTextSize);
    if (x > 0 && x + needed > width) {
      x = 0;
      y += kLegendLine;
    }
    legend.entries.push_back({i, text, x, y});
    x += needed + kEntryGap;
  }
  if (!legend.entries.empty()) {
    legend.height = y + kLegendLine;
    legend.extra_height = y;
  }
  return legend;
}

void draw_legend(SvgWriter& svg, const Plot& plot, const Legend& legend,
                 const std::vector<Pen>& pens, double left, double top) {
  for (const Legend::Entry& entry : legend.entries) {
    const double x = left + entry.x, middle = top + entry.y + kLegendLine / 2;
    draw_legend_key(svg, plot.series[entry.series], pens[entry.series], x, middle);
    svg.text(x + kKeyWidth, middle + kTextSize * kBaseline, entry.text,
             {.size = kTextSize, .fill = kInk});
  }
}

}  // namespace flashstep::measure::internal
