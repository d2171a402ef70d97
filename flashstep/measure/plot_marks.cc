// What stands inside the frame of a plot: lines, points, bars, reference lines.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot_frame.h"
#include "flashstep/measure/table.h"

namespace flashstep::measure::internal {
namespace {

// Okabe and Ito, "Color Universal Design" (2008), without the yellow that white paper swallows.
constexpr const char* kPalette[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#444444"};
constexpr int kPaletteSize = sizeof kPalette / sizeof kPalette[0];
// Of the first, second and third round of the palette: solid ones, and those of `dashed` series.
constexpr const char* kDashes[] = {"", "12 3", "12 3 2 3"};
constexpr const char* kDashedDashes[] = {"5 4", "2 4", "5 3 2 3"};
constexpr const char* kNeutral = "#666666";
constexpr double kPointRadius = 3.2;

std::string stroke(const Pen& pen, double width, double opacity = 1) {
  std::string style = str("stroke=\"", pen.color, "\" stroke-width=\"", svg_number(width), "\"");
  if (!pen.dashes.empty()) style += " stroke-dasharray=\"" + pen.dashes + "\"";
  if (opacity < 1) style += " stroke-opacity=\"" + fixed(opacity, 2) + "\"";
  return style + " fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"round\"";
}

std::string filled(const Pen& pen, double opacity = 1) {
  return str("fill=\"", pen.color, "\"",
             opacity < 1 ? " fill-opacity=\"" + fixed(opacity, 2) + "\"" : "");
}

// A colour's second and third bar are pale, with the dashes of its lines around them.
std::string bar_style(const Pen& pen) {
  if (pen.dashes.empty()) return filled(pen);
  return str(filled(pen, 0.3), " stroke=\"", pen.color, "\" stroke-width=\"2\" stroke-dasharray=\"",
             pen.dashes, "\"");
}

// Keeps first, lowest, highest and last of the consecutive points that share a pixel column.
std::vector<Point> thinned(const std::vector<Point>& run) {
  std::vector<Point> out;
  for (size_t begin = 0; begin < run.size();) {
    size_t end = begin, low = begin, high = begin;
    const double column = std::floor(run[begin].x);
    for (; end < run.size() && std::floor(run[end].x) == column; ++end) {
      if (run[end].y < run[low].y) low = end;
      if (run[end].y > run[high].y) high = end;
    }
    const size_t last = end - 1;
    size_t previous = run.size();
    for (const size_t i : {begin, std::min(low, high), std::max(low, high), last}) {
      if (i != previous) out.push_back(run[i]);
      previous = i;
    }
    begin = end;
  }
  return out;
}

std::string path_of(const std::vector<Point>& run) {
  std::string data;
  for (const Point& point : run) {
    data += data.empty() ? "M" : "L";
    data += svg_number(point.x) + " " + svg_number(point.y);
  }
  return data;
}

// How many of the later lines lie on all of this one: it is drawn wider, so that they do not hide
// it.
int lines_above(const Plot& plot, const Frame& frame, size_t i) {
  const Series& s = plot.series[i];
  const auto hides = [&](const Series& later) {
    if (later.x != s.x) return false;
    bool all = true;
    for (size_t k = 0; k < s.y.size(); ++k)
      all &= !drawable(s.y[k], frame.y_scale) ||
             std::abs(frame.y_at(later.y[k]) - frame.y_at(s.y[k])) < 2;
    return all;
  };
  const auto next = plot.series.begin() + static_cast<ptrdiff_t>(i) + 1;
  return static_cast<int>(std::min<ptrdiff_t>(3, std::count_if(next, plot.series.end(), hides)));
}

void draw_points(SvgWriter& svg, const Series& s, const Frame& frame, const Pen& pen,
                 int lines_above) {
  std::unordered_set<int64_t> seen;  // pixels that hold a point: more of them there look the same
  const double radius = s.y.size() > 200 ? 2 : kPointRadius + 1.5 * lines_above;
  for (size_t i = 0; i < s.y.size(); ++i) {
    if (!drawable(s.x[i], frame.x_scale) || !drawable(s.y[i], frame.y_scale)) continue;
    const double x = frame.x_at(s.x[i]), y = frame.y_at(s.y[i]);
    const int64_t pixel = std::llround(x) * (1 << 20) + std::llround(y);
    if (!seen.insert(pixel).second) continue;
    svg.circle(x, y, radius,
               filled(pen, s.faint ? 0.35 : 1) + " stroke=\"#ffffff\" stroke-width=\"0.8\"");
  }
}

void draw_line(SvgWriter& svg, const Series& s, const Frame& frame, const Pen& pen,
               int lines_above) {
  for (const auto& run : runs_of(s, frame)) {
    // A single point between gaps has no length: it shows as a dot.
    if (run.size() == 1)
      svg.circle(run[0].x, run[0].y, s.faint ? 2 : kPointRadius, filled(pen, s.faint ? 0.4 : 1));
    else
      svg.path(path_of(run), s.faint ? stroke(pen, 1, 0.35) : stroke(pen, 2 + 3 * lines_above));
  }
}

struct BarPlace {
  double left, width;
};
BarPlace bar_place(const Frame& frame, int category, int index, int bars) {
  const double group = frame.category_width() * (bars == 1 ? 0.6 : 0.8);
  const double width = std::min(group / bars, 60.0);
  return {frame.category_center(category) + (index - bars / 2.0) * width, width};
}

void draw_bars(SvgWriter& svg, const Series& s, const Frame& frame, const Pen& pen, int index,
               int bars) {
  const double base = std::clamp(frame.y_at(0), frame.top, frame.bottom);
  for (int i = 0; i < std::min<int>(frame.categories, static_cast<int>(s.y.size())); ++i) {
    const BarPlace place = bar_place(frame, i, index, bars);
    const double center = place.left + place.width / 2;
    const auto at = static_cast<size_t>(i);
    double top = base;
    std::string label = at < s.labels.size() ? s.labels[at] : "";
    if (drawable(s.y[at], frame.y_scale)) {
      const double y = frame.y_at(s.y[at]);
      svg.rect(place.left + 0.5, std::min(y, base), place.width - 1, std::abs(y - base),
               bar_style(pen));
      top = std::min(y, base);
      if (label.empty()) label = display(s.y[at], {NumberFormat::Style::kSignificant, 3});
    }
    const double size = 10.5;
    if (text_width(label, size) <= place.width + 4)
      svg.text(center, top - 4, label, {.size = size, .anchor = "middle", .halo = true});
  }
}

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// How many pixels of drawn lines, points and bars lie within each box.
std::vector<int> ink_within(const std::vector<Box>& boxes, const Plot& plot, const Frame& frame) {
  std::vector<int> ink(boxes.size(), 0);
  const auto mark = [&](double x, double y) {
    for (size_t i = 0; i < boxes.size(); ++i) {
      const Box& box = boxes[i];
      ink[i] += x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
    }
  };
  for (const Series& s : plot.series) {
    if (s.kind == Series::Kind::kBars) continue;
    for (const auto& run : runs_of(s, frame)) {
      mark(run[0].x, run[0].y);
      for (size_t i = 1; i < run.size() && s.kind != Series::Kind::kPoints; ++i) {
        const double dx = run[i].x - run[i - 1].x, dy = run[i].y - run[i - 1].y;
        const int steps = std::clamp(static_cast<int>(std::hypot(dx, dy) / 3), 1, 1000);
        for (int k = 1; k <= steps; ++k)
          mark(run[i - 1].x + dx * k / steps, run[i - 1].y + dy * k / steps);
      }
      for (const Point& point : run) mark(point.x, point.y);
    }
  }
  return ink;
}

// Places for a label of this size along the reference line, the preferred one first.
std::vector<Box> label_places(const Reference& reference, const Frame& frame, double width,
                              double height) {
  std::vector<Box> boxes;
  if (reference.vertical) {
    const double x = frame.x_at(reference.value);
    for (const double top :
         {frame.top + 4, (frame.top + frame.bottom) / 2, frame.bottom - height - 6})
      for (const double left : {x + 5, x - 5 - width})
        boxes.push_back({left, top, left + width, top + height});
  } else {
    const double y = frame.y_at(reference.value);
    const double middle = (frame.left + frame.right - width) / 2;
    for (const double left : {frame.right - 4 - width, frame.left + 4, middle})
      for (const double top : {y - 4 - height, y + 4})
        boxes.push_back({left, top, left + width, top + height});
  }
  return boxes;
}

}  // namespace

std::string palette_color(int index) { return kPalette[index % kPaletteSize]; }

std::vector<Pen> pens_of(const std::vector<Series>& series) {
  std::vector<Pen> pens;
  int next = 0;
  for (const Series& s : series) {
    const int color = s.color == kNextColor ? next++ : s.color;
    if (color < 0) {
      pens.push_back({kNeutral, s.dashed ? kDashedDashes[0] : ""});
      continue;
    }
    const int round = color / kPaletteSize % 3;
    pens.push_back({palette_color(color), s.dashed ? kDashedDashes[round] : kDashes[round]});
  }
  return pens;
}

std::vector<std::vector<Point>> runs_of(const Series& s, const Frame& frame) {
  std::vector<std::vector<Point>> runs;
  bool open = false;
  for (size_t i = 0; i < s.y.size(); ++i) {
    const bool here = drawable(s.x[i], frame.x_scale) && drawable(s.y[i], frame.y_scale);
    if (here && !open) runs.emplace_back();
    if (here) runs.back().push_back({frame.x_at(s.x[i]), frame.y_at(s.y[i])});
    open = here;
  }
  for (auto& run : runs) run = thinned(run);
  return runs;
}

void draw_series(SvgWriter& svg, const Plot& plot, const Frame& frame,
                 const std::vector<Pen>& pens) {
  using Kind = Series::Kind;
  const int bars =
      static_cast<int>(std::count_if(plot.series.begin(), plot.series.end(),
                                     [](const Series& s) { return s.kind == Kind::kBars; }));
  int bar = 0;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    if (s.kind == Kind::kBars) draw_bars(svg, s, frame, pens[i], bar++, bars);
    const int above = s.kind == Kind::kLineAndPoints ? lines_above(plot, frame, i) : 0;
    if (s.kind == Kind::kLine || s.kind == Kind::kLineAndPoints)
      draw_line(svg, s, frame, pens[i], above);
    if (s.kind == Kind::kPoints || s.kind == Kind::kLineAndPoints)
      draw_points(svg, s, frame, pens[i], above);
  }
}

void draw_references(SvgWriter& svg, const Plot& plot, const Frame& frame) {
  const double size = 12;
  std::vector<Box> taken;
  for (const Reference& r : plot.references) {
    if (!drawable(r.value, r.vertical ? frame.x_scale : frame.y_scale)) continue;
    const std::string style = stroke({"#444444", "6 4"}, 1.2);
    if (r.vertical)
      svg.line(frame.x_at(r.value), frame.top, frame.x_at(r.value), frame.bottom, style);
    else
      svg.line(frame.left, frame.y_at(r.value), frame.right, frame.y_at(r.value), style);
    if (r.label.empty()) continue;

    const double x = frame.x_at(r.value);
    const double room =
        r.vertical ? std::max(x - frame.left, frame.right - x) : frame.right - frame.left;
    const std::string label = fit_text(r.label, size, room - 12, Cut::kEnd);
    const auto places = label_places(r, frame, text_width(label, size), size + 2);
    std::vector<int> cost = ink_within(places, plot, frame);
    for (size_t i = 0; i < places.size(); ++i) {
      const Box& box = places[i];
      if (box.left < frame.left || box.right > frame.right || box.top < frame.top ||
          box.bottom > frame.bottom)
        cost[i] += 100000;
      for (const Box& other : taken) cost[i] += box.overlaps(other) ? 10000 : 0;
    }
    const Box& best = places[std::min_element(cost.begin(), cost.end()) - cost.begin()];
    taken.push_back(best);
    // Set at the end that the box was aligned to: other fonts are narrower than the box.
    const bool at_end = !r.vertical && best.right > (frame.left + frame.right) / 2 + 1;
    svg.text(at_end ? best.right : best.left, best.bottom - 3, label,
             {.size = size, .anchor = at_end ? "end" : "start", .fill = "#333333", .halo = true});
  }
}

void draw_legend_key(SvgWriter& svg, const Series& s, const Pen& pen, double x, double y) {
  using Kind = Series::Kind;
  if (s.kind == Kind::kBars) {
    svg.rect(x + 5, y - 6, 12, 12, bar_style(pen));
    return;
  }
  if (s.kind != Kind::kPoints)
    svg.line(x, y, x + 22, y, s.faint ? stroke(pen, 1.2, 0.45) : stroke(pen, 2.2));
  if (s.kind != Kind::kLine) svg.circle(x + 11, y, kPointRadius + 0.4, filled(pen));
}

}  // namespace flashstep::measure::internal
