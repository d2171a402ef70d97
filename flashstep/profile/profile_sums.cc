#include "flashstep/profile/profile_sums.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "flashstep/bench/record.h"
#include "flashstep/measure/spans.h"

namespace flashstep::tools {
namespace {

double seconds_of(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void add_cells(const TraceEvents& trace, const Attribution& a, ProfileSums& sums) {
  constexpr uint32_t kNoName = UINT32_MAX;
  std::map<std::tuple<Pass, uint32_t, WorkClass, uint32_t>, WorkSums> cells;
  for (const WorkItem& item : a.items) {
    WorkSums& cell =
        cells[{item.pass, item.within.range, item.work_class, trace.events[item.event].name}];
    const double seconds = seconds_of(item.self_ns);
    cell += {.seconds = seconds, .calls = item.is_call ? 1 : 0};
    if (item.within.block < 0) continue;
    const auto index = static_cast<size_t>(item.within.block);
    if (sums.block_seconds.size() <= index) sums.block_seconds.resize(index + 1);
    sums.block_seconds[index][static_cast<size_t>(item.pass)] += seconds;
  }
  for (const OperatorItem& item : a.operators) {
    cells[{item.pass, item.range, item.work_class, kNoName}] +=
        {.flops = item.flops, .bytes = item.bytes};
  }
  for (const auto& [key, cell] : cells) {
    const auto& [pass, range, work_class, name] = key;
    sums.cells.push_back({pass, range, work_class, name == kNoName ? "" : trace.names[name], cell});
  }
}

// Seconds in which one of the items runs.
template <typename Wanted>
double busy_seconds(const Attribution& a, const Wanted& wanted) {
  if (!a.on_gpu) {  // one after the other, apart from what a library runs on threads of its own
    double seconds = 0;
    for (const WorkItem& item : a.items) {
      if (wanted(item) && item.work_class != WorkClass::kHost) seconds += seconds_of(item.self_ns);
    }
    return seconds;
  }
  std::vector<measure::Span> spans;
  for (const WorkItem& item : a.items) {
    if (wanted(item)) spans.push_back({seconds_of(item.begin_ns), seconds_of(item.end_ns)});
  }
  return measure::covered_seconds(spans);
}

void add_times(const Attribution& a, ProfileSums& sums) {
  for (const RangeTime& pass : a.passes) {
    sums.passes[static_cast<size_t>(pass.pass)].host_seconds +=
        seconds_of(pass.end_ns - pass.begin_ns);
  }
  for (int i = 0; i < kPasses; ++i) {
    const auto pass = static_cast<Pass>(i);
    sums.passes[static_cast<size_t>(i)].busy_seconds =
        busy_seconds(a, [&](const WorkItem& item) { return item.pass == pass; });
  }
  sums.busy_seconds = busy_seconds(a, [](const WorkItem&) { return true; });
  for (const RangeTime& step : a.steps) {
    sums.wall_seconds += seconds_of(step.end_ns - step.begin_ns);
  }
  if (!a.steps.empty()) {
    sums.steps = static_cast<int64_t>(a.steps.size());
  } else if (!a.items.empty()) {
    const auto forwards = std::ranges::count(a.passes, Pass::kForward, &RangeTime::pass);
    sums.steps = std::max<int64_t>(forwards, 1);
    const WorkItem& last = std::ranges::max(a.items, {}, &WorkItem::end_ns);
    sums.wall_seconds = seconds_of(last.end_ns - a.items.front().begin_ns);
  }
}

// `range` and all in it, into `rows`, parents first.
void add_range(const ProfileSums& sums, const std::vector<std::vector<uint32_t>>& children,
               uint32_t range, std::vector<RangeSums>& rows) {
  const size_t index = rows.size();
  rows.push_back({range, {}});
  for (const ProfileCell& cell : sums.cells) {
    if (cell.range == range) rows[index].passes[static_cast<size_t>(cell.pass)] += cell.sums;
  }
  for (const uint32_t child : children[range]) {
    const size_t at = rows.size();
    add_range(sums, children, child, rows);
    for (size_t pass = 0; pass < kPasses; ++pass) rows[index].passes[pass] += rows[at].passes[pass];
  }
}

}  // namespace

WorkSums& WorkSums::operator+=(const WorkSums& other) {
  seconds += other.seconds;
  flops += other.flops;
  bytes += other.bytes;
  calls += other.calls;
  return *this;
}

ProfileSums sums_of(const TraceEvents& trace, const Attribution& attribution) {
  ProfileSums sums;
  sums.on_gpu = attribution.on_gpu;
  sums.ranges = attribution.ranges;
  add_cells(trace, attribution, sums);
  add_times(attribution, sums);
  sums.step_ranges = std::ranges::count_if(trace.events, [&](const TraceEvent& e) {
    return e.kind == EventKind::kRange && attribution.is_in_a_step(e.begin_ns);
  });
  return sums;
}

ProfileSums sums_of(const TraceEvents& trace) { return sums_of(trace, attribute(trace)); }

WorkSums add_up(const ProfileSums& sums, const CellFilter& filter) {
  WorkSums total;
  for (const ProfileCell& cell : sums.cells) {
    if (is_wanted(filter.passes, cell.pass) && is_wanted(filter.classes, cell.work_class) &&
        (filter.range.empty() || contains(sums.ranges.path(cell.range), filter.range)))
      total += cell.sums;
  }
  return total;
}

std::vector<NameSums> by_name(const ProfileSums& sums) {
  std::map<std::pair<std::string, WorkClass>, NameSums> names;
  for (const ProfileCell& cell : sums.cells) {
    if (cell.name.empty()) continue;
    NameSums& name = names[{cell.name, cell.work_class}];
    name.name = cell.name;
    name.work_class = cell.work_class;
    name.passes[static_cast<size_t>(cell.pass)] += cell.sums;
    name.total += cell.sums;
  }
  std::vector<NameSums> rows;
  for (auto& [key, name] : names) rows.push_back(std::move(name));
  std::ranges::stable_sort(rows, std::greater(),
                           [](const NameSums& row) { return row.total.seconds; });
  return rows;
}

std::vector<RangeSums> by_range(const ProfileSums& sums) {
  std::vector<std::vector<uint32_t>> children(sums.ranges.size());
  for (uint32_t node = 1; node < sums.ranges.size(); ++node)
    children[sums.ranges.parent(node)].push_back(node);
  std::vector<RangeSums> rows;
  for (const uint32_t top : children[RangeTree::kRoot]) add_range(sums, children, top, rows);
  return rows;
}

double unclassified_share(const ProfileSums& sums) {
  const double all = add_up(sums, {}).seconds;
  return all > 0 ? add_up(sums, {.classes = {WorkClass::kOther}}).seconds / all : 0;
}

std::vector<std::string> unclassified_names(const ProfileSums& sums) {
  std::vector<std::string> names;
  for (const NameSums& row : by_name(sums)) {
    if (row.work_class == WorkClass::kOther) names.push_back(row.name);
  }
  return names;
}

}  // namespace flashstep::tools
