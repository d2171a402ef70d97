// A flame graph (Gregg, "The Flame Graph", CACM 2016): where time goes, in what lies in what. The
// width of a frame is its share of the whole; frames that it contains stand on it.
#pragma once

#include <string>
#include <vector>

#include "flashstep/measure/plot.h"

namespace flashstep::measure {

constexpr int kDarkGrey = -3;  // a colour for frames, beside those of plot.h

struct FlameFrame {
  std::string name;
  double value = 0;   // with all that it contains; what is not positive and finite is left out
  int color = kGrey;  // of the palette
  std::vector<FlameFrame> children = {};  // drawn from left to right
};

struct FlameGraph {
  std::string title, subtitle;
  std::string footnote;  // machine, commit, command
  std::string unit = "ms";
  FlameFrame root;
  struct Key {
    std::string name;
    int color;
  };
  std::vector<Key> keys;  // what the colours mean
  double width = 1080;    // pixels; every level adds to the height
};

// The child of `parent` with this name, made if there is none.
FlameFrame& child_frame(FlameFrame& parent, const std::string& name, int color);

// Sets the value of each frame that contains others to their sum plus its own value so far.
void add_up(FlameFrame& frame);

// The picture as an SVG document; names that do not fit show when the pointer rests on the frame.
std::string to_svg(const FlameGraph& graph);

}  // namespace flashstep::measure
