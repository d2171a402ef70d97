#include "flashstep/bench/limits_table.h"

#include <algorithm>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"

namespace flashstep::tools {

measure::Table limits_table(const measure::Machine& machine,
                            const std::vector<measure::Limits>& all) {
  measure::Table table;
  table.title = "Limits";
  table.columns = {measure::text_column("device"),
                   measure::text_column("limit"),
                   measure::number_column("measured", "", 1),
                   measure::text_column("unit"),
                   measure::number_column("median", "%", 0),
                   measure::number_column("data sheet", "", 1),
                   measure::number_column("share", "%", 0),
                   measure::text_column("method")};
  table.columns[4].name = "median call";
  for (const measure::Limits& limits : all) {
    for (const measure::Limit& limit : limits.limits) {
      const double unit = 1e9;
      const auto sheet = measure::data_sheet_rate(machine, limit);
      table.add_row({limit.device, limit.name, limit.rate / unit,
                     limit.name.starts_with("matmul") ? "GFLOP/s" : "GB/s",
                     100 * limit.median_rate / limit.rate,
                     sheet ? measure::Cell(*sheet / unit) : measure::Cell(),
                     sheet ? measure::Cell(100 * limit.rate / *sheet) : measure::Cell(),
                     limit.method});
    }
    std::string note =
        limits.busy ? "Other programs were running: these rates are too low, and not kept. Run "
                      "flashstep info again when the machine is quiet."
                    : str("Measured ", limits.measured_at, " and kept in ",
                          measure::limits_cache_file(machine).string(), ".");
    if (std::find(table.notes.begin(), table.notes.end(), note) == table.notes.end())
      table.notes.push_back(std::move(note));
  }
  const std::string note = products_note(at::kBFloat16);
  if (!note.empty()) table.notes.push_back("bf16: " + note + ".");
  return table;
}

}  // namespace flashstep::tools
