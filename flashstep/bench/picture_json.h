// Pictures as the data they are drawn from, in JSON: what was measured on one machine is drawn
// anew on another.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "flashstep/bench/benchmark.h"

namespace flashstep::tools {

// A picture that came out of JSON. A kind of picture whose data have no form here is kept as it
// was drawn: its SVG document.
struct StoredPicture {
  using Kind = std::variant<measure::Plot, measure::HeatMap, measure::LaneChart, std::string>;
  std::string name;
  Kind picture;
};

// {"picture": "plot", "name": ..., ...}; numbers are exact, NaN is null, infinities are texts.
std::string to_json(const NamedPicture& picture);
std::string to_json(const StoredPicture& picture);
// UserError that names `source` for what is no such JSON.
StoredPicture picture_from_json(std::string_view json, const std::string& source);

std::string to_svg(const StoredPicture& picture);
// Its title and what it is of: "Time: bf16, batch 4"; without any its name.
std::string caption_of(const StoredPicture& picture);

}  // namespace flashstep::tools
