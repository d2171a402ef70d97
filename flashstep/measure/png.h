// SVG to PNG, where libflashstep_tools is linked: it draws with librsvg and cairo (tools/png.cc).
#pragma once

#include <optional>
#include <string>

namespace flashstep::measure {

// The bytes of a PNG file, `scale` pixels for each of the SVG's; nothing where nobody draws.
// MachineError if the SVG cannot be drawn.
std::optional<std::string> render_png(const std::string& svg, double scale);

// Who draws for render_png(), from the loading of that library on.
using PngRenderer = std::string (*)(const std::string& svg, double scale);
void set_png_renderer(PngRenderer renderer);

}  // namespace flashstep::measure
