// The pictures of `flashstep profile`.
#include <cctype>

#include "flashstep/base/text.h"
#include "flashstep/report/profile.h"

namespace flashstep::report {
namespace {

double step_milliseconds(const ProfileRun& run, double seconds) {
  return seconds * 1e3 / static_cast<double>(run.sums.steps);
}

// Share of the run's time by class, idle last; empty classes included, so that bars line up.
std::vector<double> shares(const ProfileRun& run) {
  std::vector<double> percent;
  for (int i = 0; i < kWorkClasses; ++i) {
    const WorkSums sums = add_up(run.sums, {.classes = {static_cast<WorkClass>(i)}});
    percent.push_back(100 * sums.seconds / run.wall_seconds());
  }
  percent.push_back(100 * run.idle_seconds() / run.wall_seconds());
  return percent;
}

// The palette has seven colours, for the classes that compute, move or communicate.
int color_of(WorkClass work_class) {
  const bool neutral = work_class == WorkClass::kHost || work_class == WorkClass::kOther;
  return neutral ? measure::kDarkGrey : static_cast<int>(work_class);
}

}  // namespace

std::string file_name(const std::string& case_name) {
  std::string name;
  for (const char c : case_name) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
    if (keep) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  return name;
}

measure::FlameGraph flame_graph(const ProfileCase& c, const ProfileRun& run,
                                const std::string& footnote) {
  measure::FlameGraph graph;
  graph.title = "Where the time of " + c.name + " goes";
  graph.subtitle = str(run.sums.on_gpu ? "Kernels" : "Operators",
                       " by pass and range, all blocks together, in milliseconds of one step");
  graph.footnote = footnote;
  graph.root.name = "step";
  std::vector<bool> used(kWorkClasses, false);
  for (const ProfileCell& cell : run.sums.cells) {
    measure::FlameFrame* frame =
        &measure::child_frame(graph.root, pass_name(cell.pass), measure::kGrey);
    for (const std::string& name : run.sums.ranges.path(cell.range))
      frame = &measure::child_frame(*frame, name, measure::kGrey);
    used[static_cast<size_t>(cell.work_class)] = true;
    measure::child_frame(*frame, short_kernel_name(cell.name), color_of(cell.work_class)).value +=
        step_milliseconds(run, cell.sums.seconds);
  }
  measure::add_up(graph.root);
  for (int i = 0; i < kWorkClasses; ++i) {
    const auto work_class = static_cast<WorkClass>(i);
    if (used[static_cast<size_t>(i)])
      graph.keys.push_back({class_name(work_class), color_of(work_class)});
  }
  return graph;
}

measure::Plot shares_plot(const ProfileCase& c, const std::string& footnote) {
  measure::Plot plot;
  plot.title = "Share of time by class of work";
  plot.subtitle = c.name;
  plot.footnote = footnote;
  plot.y.label = "% of the time";
  const auto add = [&](const char* name, const std::optional<ProfileRun>& run) {
    if (!run) return;
    measure::Series series{.name = name, .kind = measure::Series::Kind::kBars};
    series.y = shares(*run);
    for (const double share : series.y) series.labels.push_back(fixed(share, 1));
    plot.series.push_back(std::move(series));
  };
  add("inference", c.inference);
  add(c.workload ? c.workload->mode.c_str() : "trace", c.step);
  std::vector<std::string> names;
  for (int i = 0; i < kWorkClasses; ++i) names.emplace_back(class_name(static_cast<WorkClass>(i)));
  names.emplace_back("idle");
  // Classes that nobody ran are left out.
  for (size_t i = names.size(); i-- > 0;) {
    bool any = false;
    for (const measure::Series& series : plot.series) any = any || series.y[i] > 0;
    if (any) continue;
    names.erase(names.begin() + static_cast<std::ptrdiff_t>(i));
    for (measure::Series& series : plot.series) {
      series.y.erase(series.y.begin() + static_cast<std::ptrdiff_t>(i));
      series.labels.erase(series.labels.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  plot.categories = std::move(names);
  return plot;
}

}  // namespace flashstep::report
