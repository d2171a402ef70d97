// The pictures of `flashstep bench attention`.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/report/bench_attention_table.h"
#include "flashstep/report/bench_words.h"

namespace flashstep::report {
namespace {

using measure::HeatMap;
using measure::Plot;
using measure::Scale;
using measure::Series;
using AttentionResults = std::vector<AttentionResult>;

// What a picture has in common: one dtype, pass, mask and number of heads.
struct PictureGroup {
  std::string dtype, pass;
  int64_t batch, heads;
  bool causal;
  auto operator<=>(const PictureGroup&) const = default;

  std::string stem() const {
    return str(dtype, "_", pass, "_b", batch, "h", heads, causal ? "_causal" : "_full");
  }
  std::string text() const {
    return str(pass, ", ", dtype, ", ", causal ? "causal" : "full", ", batch ", batch,
               heads > 0 ? str(", ", heads, heads == 1 ? " head" : " heads") : "");
  }
};

PictureGroup group_of(const AttentionResult& r) {
  return {r.c.dtype, pass_name(r.pass), r.c.batch, r.c.heads, r.c.causal};
}

std::map<PictureGroup, std::vector<const AttentionResult*>> grouped(
    const AttentionResults& results) {
  std::map<PictureGroup, std::vector<const AttentionResult*>> groups;
  for (const auto& result : results) groups[group_of(result)].push_back(&result);
  return groups;
}

std::vector<std::string> contestants_of(const std::vector<const AttentionResult*>& results) {
  std::vector<std::string> names;
  for (const auto* result : results) {
    for (const auto& run : result->runs) {
      const bool known = std::find(names.begin(), names.end(), run.contestant) != names.end();
      if (!known && !run.seconds.empty()) names.push_back(run.contestant);
    }
  }
  return names;
}

int64_t drawn_head_dim(const std::vector<const AttentionResult*>& results) {
  int64_t largest = 0;
  for (const auto* result : results) {
    if (result->c.head_dim == 64) return 64;
    largest = std::max(largest, result->c.head_dim);
  }
  return largest;
}

// One line a contestant; `value` of a run is drawn at `x` of its case.
template <typename X, typename Value>
void add_lines(Plot& plot, const std::vector<const AttentionResult*>& results, const X& x,
               const Value& value) {
  for (const auto& name : contestants_of(results)) {
    Series series;
    series.name = name;
    series.kind = Series::Kind::kLineAndPoints;
    for (const auto* result : results) {
      const AttentionRun* run = find_run(*result, name);
      if (run == nullptr || run->seconds.empty()) continue;
      series.dashed = !run->ours;
      series.x.push_back(x(*result));
      series.y.push_back(value(*result, *run));
    }
    plot.series.push_back(std::move(series));
  }
}

double n_of(const AttentionResult& r) { return static_cast<double>(r.c.n); }
double milliseconds_of(const AttentionResult&, const AttentionRun& run) {
  return run.median() * 1e3;
}
double tflops_of(const AttentionResult& r, const AttentionRun& run) {
  return pass_flops(r.c, r.pass) / run.median() / 1e12;
}

// Time and rate against N.
void add_curves(std::vector<NamedPicture>& pictures, const PictureGroup& group,
                std::vector<const AttentionResult*> results, const std::string& footnote) {
  const int64_t d = drawn_head_dim(results);
  std::erase_if(results, [&](const AttentionResult* r) { return r->c.head_dim != d; });
  if (results.size() < 2) return;
  Plot plot;
  plot.title = "Attention: time";
  plot.subtitle = str(group.text(), ", head_dim ", d, "; dashed: peers");
  plot.footnote = footnote;
  plot.x = {"seq_len", Scale::kLog2, {}};
  plot.y = {"ms a call", Scale::kLog, {}};
  Plot rates = plot;
  add_lines(plot, results, n_of, milliseconds_of);
  pictures.push_back({str("time_", group.stem()), std::move(plot)});
  rates.title = "Attention: rate";
  rates.y = {"TFLOP/s", Scale::kLinear, {}};
  add_lines(rates, results, n_of, tflops_of);
  pictures.push_back({str("rate_", group.stem()), std::move(rates)});
}

// x the best peer, by head dim and N.
void add_heat_map(std::vector<NamedPicture>& pictures, const PictureGroup& group,
                  const std::vector<const AttentionResult*>& results, const std::string& footnote) {
  std::set<int64_t> lengths, head_dims;
  for (const auto* r : results) {
    lengths.insert(r->c.n);
    head_dims.insert(r->c.head_dim);
  }
  HeatMap map;
  map.title = "Attention: x the best peer";
  map.subtitle = str(group.text(), "; above 1 (blue) ours is faster");
  map.footnote = footnote;
  map.x_label = "seq_len";
  map.y_label = "head_dim";
  for (const int64_t n : lengths) map.columns.push_back(std::to_string(n));
  for (const int64_t d : head_dims) map.rows.push_back(std::to_string(d));
  map.values.assign(lengths.size() * head_dims.size(), kNothing);
  for (const auto* r : results) {
    const AttentionRun *ours = our_run(*r), *peer = fastest(*r, false);
    if (ours == nullptr || peer == nullptr) continue;
    const auto row = std::distance(head_dims.begin(), head_dims.find(r->c.head_dim));
    const auto column = std::distance(lengths.begin(), lengths.find(r->c.n));
    map.values[static_cast<size_t>(row) * lengths.size() + static_cast<size_t>(column)] =
        peer->median() / ours->median();
  }
  pictures.push_back({str("x_best_peer_", group.stem()), std::move(map)});
}

std::string pair_name(const AttentionCase& c) { return str(c.n, ":", c.m); }

// Bars of time, grouped by (N, M).
void add_bars(std::vector<NamedPicture>& pictures, const PictureGroup& group,
              const std::vector<const AttentionResult*>& results, const std::string& footnote) {
  Plot plot;
  plot.title = "Attention: time by queries : keys";
  plot.subtitle = group.text();
  plot.footnote = footnote;
  plot.y = {"ms a call", Scale::kLog, {}};
  plot.width = 1080;
  for (const auto* r : results) plot.categories.push_back(pair_name(r->c));
  for (const auto& name : contestants_of(results)) {
    Series series;
    series.name = name;
    series.kind = Series::Kind::kBars;
    for (const auto* r : results) {
      const AttentionRun* run = find_run(*r, name);
      const bool there = run != nullptr && !run->seconds.empty();
      series.y.push_back(there ? run->median() * 1e3 : kNothing);
    }
    plot.series.push_back(std::move(series));
  }
  pictures.push_back({str("bars_", group.stem()), std::move(plot)});
}

// Each contestant against the naive formula.
void add_speedups(std::vector<NamedPicture>& pictures, const PictureGroup& group,
                  const std::vector<const AttentionResult*>& results, const std::string& footnote) {
  HeatMap map;
  map.title = "Attention: x naive";
  map.subtitle = str(group.text(), "; above 1 (blue) is faster than the formula");
  map.footnote = footnote;
  map.x_label = "queries : keys";
  map.width = 1080;
  map.rows = contestants_of(results);
  for (const auto* r : results) map.columns.push_back(pair_name(r->c));
  for (const auto& name : map.rows) {
    for (const auto* r : results) {
      const AttentionRun *run = find_run(*r, name), *naive = find_run(*r, "naive");
      const bool both = run != nullptr && naive != nullptr;
      map.values.push_back(both ? naive->median() / run->median() : kNothing);
    }
  }
  pictures.push_back({str("heatmap_", group.stem()), std::move(map)});
}

// Time against N M, which is the work.
void add_scaling(std::vector<NamedPicture>& pictures, const PictureGroup& group,
                 std::vector<const AttentionResult*> results, const std::string& footnote) {
  const auto work = [](const AttentionResult& r) {
    return static_cast<double>(r.c.n) * static_cast<double>(r.c.m);
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const auto* a, const auto* b) { return work(*a) < work(*b); });
  Plot plot;
  plot.title = "Attention: scaling";
  plot.subtitle = group.text();
  plot.footnote = footnote;
  plot.x = {"queries x keys", Scale::kLog2, {}};
  plot.y = {"ms a call", Scale::kLog, {}};
  add_lines(plot, results, work, milliseconds_of);
  pictures.push_back({str("scaling_", group.stem()), std::move(plot)});
}

}  // namespace

std::vector<NamedPicture> attention_pictures(const std::string& preset,
                                             const AttentionResults& results,
                                             const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  for (const auto& [group, members] : grouped(results)) {
    if (preset == "sweep") {
      add_bars(pictures, group, members, footnote);
      add_speedups(pictures, group, members, footnote);
      add_scaling(pictures, group, members, footnote);
      continue;
    }
    if (members.size() == 1) {
      add_bars(pictures, group, members, footnote);  // nothing to draw a line against
      continue;
    }
    add_curves(pictures, group, members, footnote);
    add_heat_map(pictures, group, members, footnote);
  }
  return pictures;
}

}  // namespace flashstep::report
