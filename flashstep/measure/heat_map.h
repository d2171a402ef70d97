// A table of ratios as a picture: 1 is white, more is blue, less is orange.
#pragma once

#include <string>
#include <vector>

#include "flashstep/measure/plot.h"

namespace flashstep::measure {

struct HeatMap {
  std::string title, subtitle;
  std::string footnote;          // machine, commit, command
  std::string x_label, y_label;  // what the columns and the rows are
  std::vector<std::string> columns, rows;
  // Ratios, row by row; what is no positive number is an empty field.
  std::vector<double> values;
  double width = 720;  // pixels; every row adds to the height
};

// The colour of a ratio, "#rrggbb". Equal factors up and down are equally strong; a factor of four
// is the strongest.
std::string ratio_color(double ratio);

// The picture as an SVG document. UserError unless there is a value for each field.
std::string to_svg(const HeatMap& map);

}  // namespace flashstep::measure
