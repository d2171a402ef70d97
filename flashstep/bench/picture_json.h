// Pictures as the data they are drawn from, in JSON: what was measured on one machine is drawn
// anew on another.
#pragma once

#include <string>
#include <string_view>

#include "flashstep/bench/benchmark.h"

namespace flashstep::tools {

// {"picture": "plot", "name": ..., ...}; numbers are exact, NaN is null, infinities are texts. A
// kind of picture whose data have no form here is kept as it is drawn.
std::string to_json(const NamedPicture& picture);
// UserError that names `source` for what is no such JSON.
NamedPicture picture_from_json(std::string_view json, const std::string& source);

std::string to_svg(const NamedPicture& picture);
// Its title and what it is of: "Time: bf16, batch 4"; without any its name.
std::string caption_of(const NamedPicture& picture);
// One that is kept as it was drawn has the footnote that it was drawn with.
void set_footnote(NamedPicture& picture, const std::string& footnote);

}  // namespace flashstep::tools
