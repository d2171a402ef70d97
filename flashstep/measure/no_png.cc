#include "flashstep/measure/png.h"

namespace flashstep::measure {

std::optional<std::string> render_png(const std::string&, double) { return std::nullopt; }

}  // namespace flashstep::measure
