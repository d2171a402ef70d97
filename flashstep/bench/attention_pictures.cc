// The pictures of `flashstep bench attention`.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/bench/schema.h"

namespace flashstep::tools {
namespace {

// What the pictures of one group have in common: a dtype, pass, mask, batch and number of heads.
struct PictureGroup {
  const Records& records;
  std::string stem, text;
  std::vector<NamedPicture>& pictures;

  template <typename Picture>
  void add(const char* kind, Picture picture, const char* title,
           const std::string& more = "") const {
    pictures.push_back(named_picture(str(kind, "_", stem), std::move(picture), title, text + more));
  }
};

std::string whole(const Record& r, const char* name) {
  return std::to_string(std::llround(r.number(name)));
}
std::string pair_name(const Record& r) { return whole(r, "N") + ":" + whole(r, "M"); }
double head_dim_of(const Record& r) { return r.number("D"); }
double work_of(const Record& r) { return r.number("N") * r.number("M"); }
double tflops_of(const Record& r) { return r.number("flops") / r.median("seconds") / 1e12; }

std::string stem_of(const Record& r) {
  std::string mask = r.text("mask");  // "window 1024"
  std::ranges::replace(mask, ' ', '_');
  return str(r.text("dtype"), "_", r.text("pass"), "_b", whole(r, "B"), "h",
             r.number("H") > 0 ? whole(r, "H") : "0", "_", mask);
}

std::string text_of(const Record& r) {
  const std::string text =
      str(r.text("pass"), ", ", r.text("dtype"), ", ", r.text("mask"), ", batch ", whole(r, "B"));
  if (!(r.number("H") > 0)) return text;
  return str(text, ", ", whole(r, "H"), r.number("H") == 1 ? " head" : " heads");
}

Records sorted_by(const Records& records, const ValueOf& place) {
  std::vector<Record> sorted = records.all();
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Record& a, const Record& b) { return place(a) < place(b); });
  return sorted;
}

measure::Plot curves(const Records& records, const ValueOf& x, const char* x_label,
                     const ValueOf& y, const measure::Axis& y_axis) {
  measure::Plot plot =
      lines(records, implementation_of, x, y,
            [](measure::Series& series, const Record& first) { series.dashed = !first.ours; });
  plot.x = {x_label, measure::Scale::kLog2};
  plot.y = y_axis;
  return plot;
}

const ValueOf kMilliseconds = median_of("seconds", 1e3);
const measure::Axis kTimeAxis = {"ms a call", measure::Scale::kLog};

// Time and rate against N, at head dim 64 or the largest there is.
void add_curves(const PictureGroup& group) {
  const auto has = [](double d) { return [d](const Record& r) { return r.number("D") == d; }; };
  double d = 64;
  if (group.records.find(has(d)) == nullptr)
    d = head_dim_of(*std::ranges::max_element(group.records, {}, head_dim_of));
  const Records drawn = group.records.where(has(d));
  if (drawn.cases().size() < 2) return;
  const std::string more = str(", head_dim ", d, "; dashed: baselines");
  group.add("time", curves(drawn, length_of, "seq_len", kMilliseconds, kTimeAxis),
            "Attention: time", more);
  group.add("rate", curves(drawn, length_of, "seq_len", tflops_of, {"TFLOP/s"}), "Attention: rate",
            more);
}

// x the best peer, by head dim and N.
void add_heat_map(const PictureGroup& group) {
  const Records records = sorted_by(sorted_by(group.records, length_of), head_dim_of);
  measure::HeatMap map = heat_map(
      records.where([&](const Record& r) { return is_row(r, records); }),
      [](const Record& r) { return whole(r, "N"); }, [](const Record& r) { return whole(r, "D"); },
      [&](const Record& r) { return r.ours ? times_best_peer(r, records) : NAN; });
  map.x_label = "seq_len";
  map.y_label = "head_dim";
  group.add("x_best_peer", std::move(map), "Attention: ours beside the best baseline",
            "; above 1 (blue) ours is faster");
}

// Bars of time, grouped by (N, M).
void add_bars(const PictureGroup& group) {
  measure::Plot plot = bars(group.records, pair_name, implementation_of, kMilliseconds);
  plot.y.label = "ms a call";
  plot.width = 1080;
  group.add("bars", std::move(plot), "Attention: time by queries : keys");
}

// Each implementation against the naive formula.
void add_speedups(const PictureGroup& group) {
  measure::HeatMap map = heat_map(
      group.records, pair_name, implementation_of,
      [&](const Record& r) { return times_as_fast(r, group.records, "naive", "seconds"); });
  map.x_label = "queries : keys";
  map.width = 1080;
  group.add("heatmap", std::move(map), "Attention: x naive",
            "; above 1 (blue) is faster than the formula");
}

// Time against N M, which is the work.
void add_scaling(const PictureGroup& group) {
  group.add("scaling",
            curves(sorted_by(group.records, work_of), work_of, "queries x keys", kMilliseconds,
                   kTimeAxis),
            "Attention: scaling");
}

}  // namespace

std::vector<NamedPicture> attention_pictures(const std::string& preset, const Records& records) {
  std::vector<NamedPicture> pictures;
  for (const auto& [stem, members] : records.grouped(stem_of)) {
    const PictureGroup group{members, stem, text_of(members.all().front()), pictures};
    const bool one_case = members.cases().size() == 1;
    if (one_case) add_bars(group);
    if (preset == "sweep") {
      add_speedups(group);
      add_scaling(group);
    } else if (!one_case) {
      add_curves(group);
      add_heat_map(group);
    }
  }
  return pictures;
}

}  // namespace flashstep::tools
