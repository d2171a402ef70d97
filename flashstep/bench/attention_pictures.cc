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
  Records records;
  std::string stem, text, footnote;
};

PictureGroup group_of(const Records& records, const std::string& footnote) {
  const Record& r = records.all().front();
  const bool has_heads = r.number("H") > 0;
  const auto number = [&](const char* name) { return std::llround(r.number(name)); };
  return {records,
          str(r.text("dtype"), "_", r.text("pass"), "_b", number("B"), "h",
              has_heads ? number("H") : 0, "_", r.text("mask")),
          str(r.text("pass"), ", ", r.text("dtype"), ", ", r.text("mask"), ", batch ", number("B"),
              has_heads ? str(", ", number("H"), number("H") == 1 ? " head" : " heads") : ""),
          footnote};
}

template <typename Picture>
void add_picture(std::vector<NamedPicture>& pictures, const char* kind, const PictureGroup& group,
                 Picture picture) {
  if (picture.subtitle.empty()) picture.subtitle = group.text;
  picture.footnote = group.footnote;
  pictures.push_back({str(kind, "_", group.stem), std::move(picture)});
}

std::string whole(const Record& r, const char* name) {
  return std::to_string(std::llround(r.number(name)));
}
std::string pair_name(const Record& r) { return whole(r, "N") + ":" + whole(r, "M"); }

double drawn_head_dim(const Records& records) {
  double largest = 0;
  for (const Record& r : records)
    largest = r.number("D") == 64 ? 64 : std::max(largest, r.number("D") * (largest != 64));
  return largest;
}

void dash_peers(measure::Series& series, const Record& first) { series.dashed = !first.ours; }

// Time and rate against N.
void add_curves(std::vector<NamedPicture>& pictures, const PictureGroup& group) {
  const double d = drawn_head_dim(group.records);
  const Records drawn = group.records.where([&](const Record& r) { return r.number("D") == d; });
  if (drawn.cases().size() < 2) return;
  const auto length = [](const Record& r) { return r.number("N"); };
  const auto rate = [](const Record& r) { return r.number("flops") / r.median("seconds") / 1e12; };
  measure::Plot times =
      lines(drawn, implementation_of, length, median_of("seconds", 1e3), dash_peers);
  times.title = "Attention: time";
  times.x = {"seq_len", measure::Scale::kLog2, {}};
  times.y = {"ms a call", measure::Scale::kLog, {}};
  measure::Plot rates = lines(drawn, implementation_of, length, rate, dash_peers);
  rates.title = "Attention: rate";
  rates.x = times.x;
  rates.y = {"TFLOP/s", measure::Scale::kLinear, {}};
  times.subtitle = rates.subtitle = str(group.text, ", head_dim ", d, "; dashed: baselines");
  add_picture(pictures, "time", group, std::move(times));
  add_picture(pictures, "rate", group, std::move(rates));
}

// x the best peer, by head dim and N.
void add_heat_map(std::vector<NamedPicture>& pictures, const PictureGroup& group) {
  std::vector<Record> sorted = group.records.all();
  std::stable_sort(sorted.begin(), sorted.end(), [](const Record& a, const Record& b) {
    return std::pair(a.number("D"), a.number("N")) < std::pair(b.number("D"), b.number("N"));
  });
  const Records records(std::move(sorted));
  const Records of_ours = records.where([&](const Record& r) {
    const Record* stands_for_ours = our_record(r, records);
    return stands_for_ours != nullptr ? &r == stands_for_ours : records.is_first_of_case(r);
  });
  measure::HeatMap map = heat_map(
      of_ours, [](const Record& r) { return whole(r, "N"); },
      [](const Record& r) { return whole(r, "D"); },
      [&](const Record& r) {
        const Record* peer =
            records.fastest(r, "seconds", [](const Record& other) { return !other.ours; });
        return peer == nullptr || !r.ours ? NAN : peer->median("seconds") / r.median("seconds");
      });
  map.title = "Attention: ours beside the best baseline";
  map.subtitle = str(group.text, "; above 1 (blue) ours is faster");
  map.x_label = "seq_len";
  map.y_label = "head_dim";
  add_picture(pictures, "x_best_peer", group, std::move(map));
}

// Bars of time, grouped by (N, M).
void add_bars(std::vector<NamedPicture>& pictures, const PictureGroup& group) {
  measure::Plot plot = bars(group.records, pair_name, implementation_of, median_of("seconds", 1e3));
  plot.title = "Attention: time by queries : keys";
  plot.y = {"ms a call", {}, {}};
  plot.width = 1080;
  add_picture(pictures, "bars", group, std::move(plot));
}

// Each implementation against the naive formula.
void add_speedups(std::vector<NamedPicture>& pictures, const PictureGroup& group) {
  measure::HeatMap map = heat_map(
      group.records, pair_name, implementation_of,
      [&](const Record& r) { return times_as_fast(r, group.records, "naive", "seconds"); });
  map.title = "Attention: x naive";
  map.subtitle = str(group.text, "; above 1 (blue) is faster than the formula");
  map.x_label = "queries : keys";
  map.width = 1080;
  add_picture(pictures, "heatmap", group, std::move(map));
}

// Time against N M, which is the work.
void add_scaling(std::vector<NamedPicture>& pictures, const PictureGroup& group) {
  const auto work = [](const Record& r) { return r.number("N") * r.number("M"); };
  std::vector<Record> sorted = group.records.all();
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Record& a, const Record& b) { return work(a) < work(b); });
  measure::Plot plot = lines(Records(std::move(sorted)), implementation_of, work,
                             median_of("seconds", 1e3), dash_peers);
  plot.title = "Attention: scaling";
  plot.x = {"queries x keys", measure::Scale::kLog2, {}};
  plot.y = {"ms a call", measure::Scale::kLog, {}};
  add_picture(pictures, "scaling", group, std::move(plot));
}

}  // namespace

std::vector<NamedPicture> attention_pictures(const std::string& preset, const Records& records,
                                             const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  std::vector<PictureGroup> groups;
  for (const auto& [name, members] :
       records.grouped([](const Record& r) { return group_of(Records({r}), "").stem; }))
    groups.push_back(group_of(members, footnote));
  for (const PictureGroup& group : groups) {
    if (group.records.cases().size() == 1) add_bars(pictures, group);
    if (preset == "sweep") {
      add_speedups(pictures, group);
      add_scaling(pictures, group);
    } else if (group.records.cases().size() > 1) {
      add_curves(pictures, group);
      add_heat_map(pictures, group);
    }
  }
  return pictures;
}

}  // namespace flashstep::tools
