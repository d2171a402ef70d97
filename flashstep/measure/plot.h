// Pictures of measurements: lines, points, grouped bars; linear and logarithmic axes.
// Our own SVG: self-contained, text stays text, colours that colour-blind people tell apart (Okabe
// and Ito), and nothing in it that is not finite, whatever the data hold.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/measure/ticks.h"

namespace flashstep::measure {

constexpr int kNextColor = -1;  // the next one of the palette
constexpr int kGrey = -2;       // for what belongs to no series in particular

struct Series {
  enum class Kind { kLine, kPoints, kLineAndPoints, kBars };
  std::string name = {};  // in the legend; empty: not there
  Kind kind = Kind::kLine;
  // Points (x[i], y[i]). What is not drawable (NaN, infinity, not positive on a logarithmic axis)
  // is a gap. Bars stand at plot.categories[i] and need no x.
  std::vector<double> x = {}, y = {};
  std::vector<std::string> labels = {};  // bars: what stands above each ("OOM"); empty: its value
  int color = kNextColor;
  bool faint = false;  // raw data behind their smoothed line
  bool dashed = false;
};

// A line across the plot at a known value: a limit, a baseline.
struct Reference {
  double value;
  std::string label;
  bool vertical = false;  // at an x instead of a y
};

struct Axis {
  std::string label;
  Scale scale = Scale::kLinear;
};

struct Plot {
  std::string title, subtitle;
  std::string footnote;  // machine, commit, command
  Axis x, y;
  std::vector<Series> series;  // drawn in this order
  std::vector<Reference> references;
  std::vector<std::string> categories;  // of bars
  double width = 720,
         height = 440;  // pixels; more legend lines and slanted labels add to the height
};

// The picture as an SVG document. Lines of any length become at most four points a pixel column,
// their extremes kept. UserError where x and y differ in length.
std::string to_svg(const Plot& plot);

struct WrittenPlot {
  std::filesystem::path svg;
  std::optional<std::filesystem::path> png;  // none in a build without librsvg
};

// Writes PATH_STEM.svg and PATH_STEM.png. Throws MachineError when that fails.
WrittenPlot write_picture(const std::string& svg, const std::filesystem::path& path_stem);
// Of a picture of any kind.
template <typename Picture>
WrittenPlot write_plot(const Picture& picture, const std::filesystem::path& path_stem) {
  return write_picture(to_svg(picture), path_stem);
}

}  // namespace flashstep::measure
