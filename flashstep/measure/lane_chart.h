// What runs when: lanes under each other over one axis of time, such as the compute and the
// communication of a step.
#pragma once

#include <string>
#include <vector>

#include "flashstep/measure/plot.h"
#include "flashstep/measure/spans.h"

namespace flashstep::measure {

struct Lane {
  std::string name;
  std::vector<Span> spans;  // seconds; those that touch are drawn as one
  int color = 0;            // of the palette
  std::string label = {};   // at the right end: "26.1 ms"; may be empty
};

// Lanes that belong together, under a heading of their own.
struct LaneGroup {
  std::string title;
  std::vector<Lane> lanes;
};

struct LaneChart {
  std::string title, subtitle;
  std::string footnote;  // machine, commit, command
  std::vector<LaneGroup> groups;
  double width = 1080;  // pixels; every lane adds to the height
};

// The picture as an SVG document; time in milliseconds from 0 on. Spans that are not finite are
// left out.
std::string to_svg(const LaneChart& chart);

}  // namespace flashstep::measure
