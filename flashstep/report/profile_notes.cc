// What the tables of `flashstep profile` say, in sentences made of their numbers.
#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"
#include "flashstep/profiling.h"
#include "flashstep/report/profile.h"

namespace flashstep::report {
namespace {

constexpr double kUnclassifiedLimit = 0.02;  // of the time

std::string one_digit_percent(double share) { return fixed(100 * share, 1) + " %"; }

// The name with the most time among the passes; empty if nothing ran.
struct Top {
  std::string name;
  double calls = 0;  // of one step
};
Top top_of(const ProfileRun& run, std::vector<Pass> passes) {
  Top top;
  double most = 0;
  for (const NameSums& row : by_name(run.sums)) {
    if (row.work_class == WorkClass::kHost) continue;
    WorkSums sums;
    for (const Pass pass : passes) sums += row.passes[static_cast<size_t>(pass)];
    if (sums.seconds <= most) continue;
    most = sums.seconds;
    top = {short_kernel_name(row.name),
           static_cast<double>(sums.calls) / static_cast<double>(run.sums.steps)};
  }
  return top;
}

void note_tops(const ProfileCase& c, std::vector<std::string>& notes) {
  const Top forward = top_of(*c.step, {Pass::kForward});
  const Top both = top_of(*c.step, {Pass::kForward, Pass::kBackward});
  if (forward.name.empty()) return;
  const char* kind = c.step->sums.on_gpu ? "kernel" : "operator";
  std::string note = str(c.name, ": the forward pass spends most time in ", forward.name, ", ",
                         fixed(forward.calls, 0), " calls of this ", kind);
  if (add_up(c.step->sums, {.passes = {Pass::kBackward}}).seconds > 0) {
    note += both.name == forward.name ? "; so do forward and backward together"
                                      : "; forward and backward together in " + both.name;
  }
  notes.push_back(note + ".");
}

void note_products(const ProfileCase& c, std::vector<std::string>& notes) {
  if (!c.inference) return;
  const CellFilter products{.classes = {WorkClass::kMatmul}};
  const double before = add_up(c.inference->sums, products).seconds / c.inference->wall_seconds();
  const double after = add_up(c.step->sums, products).seconds / c.step->wall_seconds();
  notes.push_back(str(c.name, ": matrix products take ", one_digit_percent(before),
                      " of the forward pass alone and ", one_digit_percent(after), " of the ",
                      c.workload ? c.workload->mode : "trace", "."));
}

void note_unclassified(const ProfileCase& c, std::vector<std::string>& notes) {
  const double share = unclassified_share(c.step->sums);
  if (share == 0) return;
  std::vector<std::string> names = unclassified_names(c.step->sums);
  constexpr size_t kNamed = 5;
  names.resize(std::min(names.size(), kNamed));
  for (std::string& name : names) name = short_kernel_name(name);
  notes.push_back(str(c.name, ": ", one_digit_percent(share), " of the time is in no class",
                      share <= kUnclassifiedLimit ? "" : ", which is TOO MUCH", ": ", join(names),
                      "."));
}

// Seconds of a range that nobody listens to.
double silent_range_seconds() {
  constexpr int kRanges = 1'000'000;
  const double begin = measure::steady_seconds();
  for (int i = 0; i < kRanges; ++i) const ScopedRange range("nobody listens");
  return (measure::steady_seconds() - begin) / kRanges;
}

void note_ranges(const ProfileCase& c, std::vector<std::string>& notes) {
  std::vector<double> seconds;
  for (const StepTimes& times : c.step->timers) seconds.push_back(times.total);
  if (seconds.empty()) return;
  const double one = silent_range_seconds();
  const double share = one * c.ranges / measure::median(seconds);
  constexpr double kTiny = 1e-5;
  notes.push_back(str(c.name, ": ", fixed(c.ranges, 0), " ranges in a step; while nobody listens ",
                      "they cost ", fixed(one * 1e9, 1), " ns each, ",
                      share < kTiny ? "less than 0.001" : fixed(100 * share, 3),
                      " % of the step."));
}

}  // namespace

std::vector<std::string> profile_notes(const std::vector<ProfileCase>& cases) {
  std::vector<std::string> notes;
  for (const ProfileCase& c : cases) {
    if (!c.step) continue;
    note_tops(c, notes);
    note_products(c, notes);
    note_unclassified(c, notes);
    note_ranges(c, notes);
  }
  return notes;
}

}  // namespace flashstep::report
