#include "flashstep/report/trace_json.h"

#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace flashstep::report {
namespace {

using Json = nlohmann::json;
using measure::Span;

Json json_of(const std::vector<Span>& spans) {
  Json json = Json::array();
  for (const Span& span : spans) {
    json.push_back(std::round(span.begin * 1e7) * 1e-7);  // Kineto's own grain is finer
    json.push_back(std::round(span.end * 1e7) * 1e-7);
  }
  return json;
}

std::vector<Span> spans_of(const Json& json) {
  std::vector<Span> spans;
  for (size_t i = 0; i + 1 < json.size(); i += 2) spans.push_back({json[i], json[i + 1]});
  return spans;
}

}  // namespace

Json json_of(const Trace& trace) {
  return {{"compute", json_of(trace.compute)},
          {"copies", json_of(trace.copies)},
          {"communication", json_of(trace.communication)},
          {"trace_trouble", trace.trouble}};
}

Trace trace_of(const Json& json) {
  return {spans_of(json["compute"]), spans_of(json["copies"]), spans_of(json["communication"]),
          json["trace_trouble"].get<std::string>()};
}

}  // namespace flashstep::report
