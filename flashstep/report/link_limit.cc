#include "flashstep/report/link_limit.h"

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/data_sheet.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"

namespace flashstep::report {

std::optional<Link> nvlink_limit(const std::string& gpu_name) {
  const auto sheet = measure::find_link_sheet(gpu_name);
  if (!sheet) return std::nullopt;
  return Link{sheet->bytes_per_s, sheet->source};
}

Link loopback_limit() {
  const measure::Limits links = measure::machine_limits(measure::describe_machine(), "link");
  for (const measure::Limit& limit : links.limits) {
    if (limit.name == "loopback")
      return {limit.rate, str(limit.method, " over the loopback, measured ", links.measured_at)};
  }
  throw MachineError("[limits] the loopback was not measured");
}

}  // namespace flashstep::report
