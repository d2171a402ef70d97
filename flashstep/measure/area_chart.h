// Amounts that add up, over an axis: layers on top of each other, such as the memory of a step by
// what it holds. Each value holds until the next one.
#pragma once

#include <string>
#include <vector>

#include "flashstep/measure/plot.h"

namespace flashstep::measure {

struct AreaLayer {
  std::string name;
  int color = 0;               // of the palette, or kGrey
  std::vector<double> values;  // at each x; from 0 on (what is not finite or negative is 0)
};

// A stretch of the axis with a name, marked above the data.
struct AreaSpan {
  double begin = 0, end = 0;
  std::string label;
};

struct AreaChart {
  std::string title, subtitle;
  std::string footnote;  // machine, commit, command
  std::string x_label, y_label;
  std::vector<double> x;          // ascending
  std::vector<AreaLayer> layers;  // from the bottom up; those that are 0 everywhere are left out
  std::vector<AreaSpan> spans;
  double width = 1080, height = 520;  // pixels; more lines of the legend add to the height
};

// The picture as an SVG document. UserError unless there is a value for each x, and x ascends.
std::string to_svg(const AreaChart& chart);

}  // namespace flashstep::measure
