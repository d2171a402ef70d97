// SVG to PNG, through librsvg and cairo (png.cc); a portable build does without (no_png.cc).
#pragma once

#include <optional>
#include <string>

namespace flashstep::measure {

// The bytes of a PNG file, `scale` pixels for each of the SVG's; nothing in a build without
// librsvg. MachineError if the SVG cannot be drawn.
std::optional<std::string> render_png(const std::string& svg, double scale);

}  // namespace flashstep::measure
