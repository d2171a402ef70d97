// What `flashstep profile` says of its tables in sentences, and its pictures.
#include <algorithm>
#include <regex>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/profile/profile.h"
#include "flashstep/profiling.h"

namespace flashstep::tools {
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
                      c.mode(), "."));
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
  if (!c.step->timers.has("total")) return;
  const double one = silent_range_seconds(),
               ranges = static_cast<double>(c.step->sums.step_ranges) /
                        static_cast<double>(c.step->sums.steps);
  const double share = one * ranges / c.step->timers.median("total");
  constexpr double kTiny = 1e-5;
  notes.push_back(str(c.name, ": ", fixed(ranges, 0), " ranges in a step; while nobody listens ",
                      "they cost ", fixed(one * 1e9, 1), " ns each, ",
                      share < kTiny ? "less than 0.001" : fixed(100 * share, 3),
                      " % of the step."));
}

// The pictures of `flashstep profile`.

// Of the run's time, in percent; no class: idle.
double share_of(const ProfileRun& run, const std::optional<WorkClass>& work_class) {
  const double seconds =
      work_class ? add_up(run.sums, {.classes = {*work_class}}).seconds : run.idle_seconds();
  return 100 * seconds / run.wall_seconds();
}

// The palette has seven colours, for the classes that compute, move or communicate.
int color_of(WorkClass work_class) {
  const bool neutral = work_class == WorkClass::kHost || work_class == WorkClass::kOther;
  return neutral ? measure::kDarkGrey : static_cast<int>(work_class);
}

measure::FlameGraph flame_graph(const std::string& title, const ProfileRun& run) {
  measure::FlameGraph graph;
  graph.title = title;
  graph.subtitle = str(run.sums.on_gpu ? "Kernels" : "Operators",
                       " by pass and range, all blocks together, in milliseconds of one step");
  graph.root.name = "step";
  std::set<WorkClass> used;
  for (const ProfileCell& cell : run.sums.cells) {
    if (cell.name.empty()) continue;
    measure::FlameFrame* frame =
        &measure::child_frame(graph.root, pass_name(cell.pass), measure::kGrey);
    for (const std::string& name : run.sums.ranges.path(cell.range))
      frame = &measure::child_frame(*frame, name, measure::kGrey);
    used.insert(cell.work_class);
    measure::child_frame(*frame, short_kernel_name(cell.name), color_of(cell.work_class)).value +=
        run.milliseconds_a_step(cell.sums.seconds);
  }
  measure::add_up(graph.root);
  for (const WorkClass work_class : used)
    graph.keys.push_back({class_name(work_class), color_of(work_class)});
  return graph;
}

measure::Plot shares_plot(const ProfileCase& c) {
  measure::Plot plot;
  plot.title = "Share of time by class of work";
  plot.subtitle = c.name;
  plot.y.label = "% of the time";
  const auto& all = all_work_classes();
  std::vector<std::optional<WorkClass>> shown(all.begin(), all.end());
  shown.emplace_back();  // idle
  std::erase_if(shown, [&](const auto& work_class) {
    return !(c.inference && share_of(*c.inference, work_class) > 0) &&
           !(c.step && share_of(*c.step, work_class) > 0);
  });
  for (const auto& work_class : shown)
    plot.categories.emplace_back(work_class ? class_name(*work_class) : "idle");
  const auto add = [&](const std::string& name, const std::optional<ProfileRun>& run) {
    if (!run) return;
    measure::Series series{.name = name, .kind = measure::Series::Kind::kBars};
    for (const auto& work_class : shown) {
      series.y.push_back(share_of(*run, work_class));
      series.labels.push_back(fixed(series.y.back(), 1));
    }
    plot.series.push_back(std::move(series));
  };
  add("inference", c.inference);
  add(c.mode(), c.step);
  return plot;
}

}  // namespace

std::vector<std::string> profile_notes(const std::vector<ProfileCase>& cases) {
  std::vector<std::string> notes;
  for (const ProfileCase& c : cases) {
    if (c.workload && c.workload->model.window > 0)
      notes.push_back(c.name + ": FLOPs of attention are counted as without the window.");
    if (!c.step) continue;
    note_tops(c, notes);
    note_products(c, notes);
    note_unclassified(c, notes);
    note_ranges(c, notes);
  }
  return notes;
}

std::string file_name(const std::string& case_name) {
  static const std::regex others("[^A-Za-z0-9.-]+");
  const std::string name = std::regex_replace(case_name, others, "_");
  return name.starts_with('_') ? name.substr(1) : name;
}

std::vector<NamedPicture> profile_pictures(const std::vector<ProfileCase>& cases) {
  std::vector<NamedPicture> pictures;
  for (const ProfileCase& c : cases) {
    const std::string name = file_name(c.name);
    const auto add_flames = [&](const char* stem, const char* whose,
                                const std::optional<ProfileRun>& run) {
      if (!run) return;
      const std::string title = str("Where ", whose, " of ", c.name, " goes");
      pictures.push_back({stem + name, flame_graph(title, *run)});
    };
    add_flames("flame_", "the time", c.step);
    if (c.step) pictures.push_back({"shares_" + name, shares_plot(c)});
    add_flames("flame_inference_", "inference's time", c.inference);
  }
  return pictures;
}

}  // namespace flashstep::tools
