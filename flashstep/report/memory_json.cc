// A result on its way from the process that measured it.
#include <nlohmann/json.hpp>

#include "flashstep/report/memory.h"

namespace flashstep::report {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LargeAllocation, bytes, count, kind, shape, range, maker, source)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedByOperator, maker, bytes)

std::string to_json(const MemoryResult& r) {
  const Json json = {{"task", Json::parse(write_json(r.task))},
                     {"trouble", r.failure},
                     {"whole_layers", r.whole_layers},
                     {"at_peak", r.at_peak},
                     {"peak_range", r.peak_range},
                     {"forward", r.forward},
                     {"backward", r.backward},
                     {"update", r.update},
                     {"device_bytes", r.device_bytes},
                     {"block", r.block},
                     {"block_saved", r.block_saved},
                     {"block_gradients", r.block_gradients},
                     {"saved_by", r.saved_by},
                     {"residual_bytes", r.residual_bytes},
                     {"largest", r.largest}};
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

MemoryResult memory_result_from_json(const std::string& text) {
  const Json json = Json::parse(text);
  MemoryResult r;
  read_json(r.task, json.at("task").dump(), "a result");
  json.at("trouble").get_to(r.failure);
  json.at("whole_layers").get_to(r.whole_layers);
  json.at("at_peak").get_to(r.at_peak);
  json.at("peak_range").get_to(r.peak_range);
  json.at("forward").get_to(r.forward);
  json.at("backward").get_to(r.backward);
  json.at("update").get_to(r.update);
  json.at("device_bytes").get_to(r.device_bytes);
  json.at("block").get_to(r.block);
  json.at("block_saved").get_to(r.block_saved);
  json.at("block_gradients").get_to(r.block_gradients);
  json.at("saved_by").get_to(r.saved_by);
  json.at("residual_bytes").get_to(r.residual_bytes);
  json.at("largest").get_to(r.largest);
  return r;
}

}  // namespace flashstep::report
