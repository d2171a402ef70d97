#include "flashstep/measure/png.h"

namespace flashstep::measure {
namespace {

PngRenderer png_renderer = nullptr;

}  // namespace

std::optional<std::string> render_png(const std::string& svg, double scale) {
  if (png_renderer == nullptr) return std::nullopt;
  return png_renderer(svg, scale);
}

void set_png_renderer(PngRenderer renderer) { png_renderer = renderer; }

}  // namespace flashstep::measure
