// Inside of plot.cc, plot_axes.cc, plot_marks.cc and heat_map.cc: where the data are on the page,
// and what is drawn in and around them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/measure/plot.h"
#include "flashstep/measure/svg.h"

namespace flashstep::measure::internal {

constexpr double kMargin = 16;      // around the page
constexpr double kTextSize = 12.5;  // ticks, labels, legend
constexpr double kBaseline = 0.36;  // from the middle of a text down to its baseline, in font sizes
constexpr const char* kInk = "#222222";
constexpr const char* kSoftInk = "#555555";

struct Point {
  double x, y;
};

// The rectangle of the data, in pixels, and what its sides stand for.
struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  Interval x, y;
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear;
  int categories = 0;     // > 0: bars stand along the x axis
  bool whole_x = false;   // all x are whole numbers
  bool any_data = false;  // at least one y can be drawn

  double x_at(double value) const { return left + (right - left) * position_on(x, x_scale, value); }
  double y_at(double value) const {
    return bottom - (bottom - top) * position_on(y, y_scale, value);
  }
  double category_width() const { return (right - left) / categories; }
  double category_center(int i) const { return left + (i + 0.5) * category_width(); }
};

struct Pen {
  std::string color;
  std::string dashes;  // stroke-dasharray, or empty
};
// One pen a series: colours of the palette in turn; with each round through it another dash
// pattern.
std::vector<Pen> pens_of(const std::vector<Series>& series);
std::string palette_color(int index);  // from 0 on, again from the first after the last

// Names of series with their keys, in as many lines as they need. Positions count from its corner.
struct Legend {
  struct Entry {
    size_t series;
    std::string text;
    double x, y;
  };
  std::vector<Entry> entries;
  double height = 0;
  double extra_height = 0;  // beyond its first line
};

// plot.cc
// The beginning of an SVG document, up to its white page.
std::string document_head(const std::string& title, const std::string& description, double width,
                          double height);
// Title and subtitle at the top of a page of this width; returns where they end.
double draw_heading(SvgWriter& svg, const std::string& title, const std::string& subtitle,
                    double page_width);
// The footnote from `y` on, in at most three lines; returns where it ends.
double draw_footnote(SvgWriter& svg, const std::string& footnote, double page_width, double y);

// plot_axes.cc
void choose_intervals(const Plot& plot, Frame& frame);  // all of the frame but its rectangle
double widest_label(const std::vector<Tick>& ticks);
void draw_y_axis(SvgWriter& svg, const Frame& frame, const std::vector<Tick>& ticks);
void draw_x_axis(SvgWriter& svg, const Frame& frame);
// Names below their bars: upright in up to three lines if all of them fit so, else slanted. Returns
// the height that they take.
double draw_categories(SvgWriter& svg, const Plot& plot, const Frame& frame);
Legend lay_out_legend(const Plot& plot, double width);
void draw_legend(SvgWriter& svg, const Plot& plot, const Legend& legend,
                 const std::vector<Pen>& pens, double left, double top);

// plot_marks.cc
// The drawable points of a line in pixels, split at gaps, thinned to at most four a pixel column:
// first, last, lowest and highest of each.
std::vector<std::vector<Point>> runs_of(const Series& series, const Frame& frame);
void draw_series(SvgWriter& svg, const Plot& plot, const Frame& frame,
                 const std::vector<Pen>& pens);
// The dashed lines, and their labels where they cover the least.
void draw_references(SvgWriter& svg, const Plot& plot, const Frame& frame);
// A line, a dot or a box as it looks in the plot, 22 pixels wide.
void draw_legend_key(SvgWriter& svg, const Series& series, const Pen& pen, double x, double y);

}  // namespace flashstep::measure::internal
