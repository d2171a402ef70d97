#include "flashstep/bench/limits_table.h"

#include <algorithm>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/bench/record.h"
#include "flashstep/ops/internal.h"

namespace flashstep::tools {
namespace {

// When the limits were measured. Where that is not the same for all, each note begins with the
// devices that it is about.
std::vector<std::string> notes_of_limits(const measure::Machine& machine,
                                         const std::vector<measure::Limits>& all) {
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;  // with their devices
  for (const measure::Limits& limits : all) {
    if (limits.limits.empty()) continue;
    const std::string note =
        limits.busy ? "Other programs were running: these rates are too low, and not kept. Run "
                      "flashstep info again when the machine is quiet."
        : limits.not_kept.empty()
            ? str("Measured ", limits.measured_at, " and kept in ",
                  measure::limits_cache_file(machine).string(), ".")
            : str("Measured ", limits.measured_at, "; could not be kept: ", limits.not_kept, ".");
    auto same = std::ranges::find(notes, note, [](const auto& one) { return one.first; });
    if (same == notes.end()) same = notes.insert(same, {note, {}});
    same->second.push_back(limits.limits.front().device);
  }
  std::vector<std::string> sentences;
  for (const auto& [note, devices] : notes)
    sentences.push_back((notes.size() < 2 ? "" : join(devices) + ": ") + note);
  return sentences;
}

}  // namespace

measure::Table limits_table(const measure::Machine& machine,
                            const std::vector<measure::Limits>& all) {
  measure::Table table;
  table.title = "Limits";
  table.columns = {measure::text_column("device"),
                   measure::text_column("limit"),
                   measure::number_column("measured", "", 1),
                   measure::text_column("unit"),
                   measure::number_column("median call", "%", 0),
                   measure::number_column("data sheet", "", 1),
                   measure::number_column("share", "%", 0),
                   measure::text_column("method")};
  for (const measure::Limits& limits : all) {
    for (const measure::Limit& limit : limits.limits) {
      const auto sheet = measure::data_sheet_rate(machine, limit);
      const auto of_sheet = [&](double value) {
        return sheet ? measure::Cell(value) : measure::Cell();
      };
      table.add_row({limit.device, limit.name, limit.rate / 1e9,
                     limit.name.starts_with("matmul") ? "GFLOP/s" : "GB/s",
                     100 * limit.median_rate / limit.rate, of_sheet(sheet.value_or(0) / 1e9),
                     of_sheet(100 * limit.rate / sheet.value_or(1)), limit.method});
    }
  }
  table.notes = notes_of_limits(machine, all);
  const std::string note = products_note(at::kBFloat16);
  if (!note.empty()) table.notes.push_back("bf16: " + note + ".");
  return table;
}

}  // namespace flashstep::tools
