// Sources: flashstep/report/result.cc flashstep/bench/picture_json.cc
// Sources: flashstep/measure/table*.cc flashstep/measure/plot*.cc flashstep/measure/*_chart.cc
// Sources: flashstep/measure/heat_map.cc flashstep/measure/flame_graph.cc flashstep/measure/svg.cc
// Sources: flashstep/measure/ticks.cc flashstep/measure/utf8.cc flashstep/measure/png.cc
// Sources: flashstep/measure/spans.cc
// Any bytes as a report's stored result: refused with UserError, or a result that is written and
// read again without a change, and whose pictures can be drawn.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "flashstep/error.h"
#include "flashstep/report/result.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flashstep::tools;
  const std::string json(reinterpret_cast<const char*>(data), size);
  try {
    const Result result = result_from_json(json, "fuzz");
    const std::string written = to_json(result);
    if (to_json(result_from_json(written, "written")) != written) std::abort();
    for (const NamedPicture& picture : result.pictures) to_svg(picture);
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
