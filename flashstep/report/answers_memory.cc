// Answers about the memory of a pass.
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

const Columns kPass = {"size", "context", "mode", "precision"};
constexpr double kNearlyAll = 0.9;  // of a peak: then nothing else can change it much

// Of several kinds at a peak; an empty cell holds nothing.
double held(const TableRow& row, const Columns& kinds) {
  double all = 0;
  for (const std::string& kind : kinds) all += std::fmax(row.number(kind), 0);
  return all;
}

// "optimizer state (25.4 GiB)": what holds more of a peak than anything else does.
std::string largest_holder(const TableRow& row) {
  std::string most;
  for (const char* kind : {"parameters", "gradients", "optimizer state", "activations",
                           "temporaries", "communication"}) {
    if (held(row, {kind}) > held(row, {most})) most = kind;
  }
  return most.empty() ? "" : most + " (" + memory_words(held(row, {most})) + ")";
}

// "backward/layers.31/feed-forward/swiglu" -> "backward (layer 31, swiglu)"
std::string place_of_peak(const std::string& path) {
  const size_t first = path.find('/'), last = path.rfind('/');
  if (first == std::string::npos) return path;
  std::string layer;
  if (const size_t at = path.find("layers."); at != std::string::npos) {
    const size_t begin = at + 7;
    layer = "layer " + path.substr(begin, path.find('/', begin) - begin) + ", ";
  }
  return path.substr(0, first) + " (" + layer + path.substr(last + 1) + ")";
}

Facts memory_timeline(const Evidence& evidence) {
  const TableRows rows = evidence.rows("peaks").with({"peak"});
  auto both = pairs(rows, "mode", "forward", "step", {"size", "context", "precision"});
  if (both.empty()) return {};
  const std::string precision = both.front().a.text("precision");
  std::erase_if(both, [&](const RowPair& pair) { return pair.a.text("precision") != precision; });
  const auto& [forward, step] = both.back();
  const std::string size = without_slashes(step.text("size"));
  return {.words = {{"precision", precision},
                    {"place", place_of_peak(step.text("peak in"))},
                    {"holder", largest_holder(step)},
                    {"forward place", place_of_peak(forward.text("peak in"))},
                    {"forward holder", largest_holder(forward)},
                    {"times", span_of(ratios(both, "peak"), 1)}},
          .rows = {{"", step}, {"b", forward}},
          .picture = {str("_", size, "_c", step.number("context"), "_"), precision}};
}

Facts memory_peaks(const Evidence& evidence) {
  const TableRows rows = evidence.rows("peaks"), full = rows.where({{"precision", "fp32"}});
  const TableRows shown = full.empty() ? rows : full;
  Facts facts;
  facts.table.columns = {measure::text_column("size"), measure::integer_column("context")};
  const Columns modes = shown.distinct("mode");
  for (const std::string& mode : modes)
    facts.table.columns.push_back(measure::number_column(mode + " peak", "MiB", 2));
  for (const TableRows& same : shown.by({"size", "context"})) {
    std::vector<measure::Cell> cells = {same.front().text("size"), same.front().cell("context")};
    for (const std::string& mode : modes)
      cells.push_back(same.first({{"mode", mode}}).cell("peak"));
    facts.table.add_row(std::move(cells));
  }
  say_in_gibibytes(facts.table);
  for (const TableRows& mode : shown.with({"peak"}).by({"mode"})) {
    const TableRow least = mode.least("peak"),
                   most = mode.size() > 1 ? mode.most("peak") : TableRow();
    facts.cases.push_back(
        {{{"forward", which(least.text("mode") == "forward")}}, {{"", least}, {"b", most}}});
  }
  const size_t no_room = rows.where({{"peak", "OOM"}}).size();
  if (no_room > 0 && !facts.cases.empty()) facts.words["cases"] = count_of(no_room, "case");
  return facts;
}

// Why peaks rise or fall from fp32 to bf16, where what the passes make, or keep beside the state,
// accounts for most of it.
void add_reason_of_change(const RowPairs& both, SentenceWords& words) {
  const Columns made = {"activations", "temporaries", "other"},
                state = {"parameters", "gradients", "optimizer state"};
  double risen = 0, more = 0, copies = 0, fallen = 0, less = 0;
  bool all_state = true;
  for (const auto& [half, full] : both) {
    const double peaks = half.number("peak") - full.number("peak");
    const double passes = held(half, made) - held(full, made);
    const int order = compare_measured(half.number("peak"), full.number("peak"));
    if (order > 0) risen += peaks, more += passes, copies = held(half, {"parameters"}) / 2;
    if (order < 0) fallen -= peaks, less -= passes;
    all_state &= order != 0 || held(half, state) >= kNearlyAll * half.number("peak");
  }
  if (risen > 0 && more > risen / 2 && copies > 0) words["copies"] = memory_words(copies);
  if (fallen > 0 && less > fallen / 2)
    words["reason"] = "0";
  else if (risen == 0 && fallen == 0 && all_state)
    words["reason"] = "1";
}

// "step" of "step, bf16 stream": the stream goes with the precision.
std::string pass_of(const TableRow& row) {
  std::string mode = row.text("mode");
  const std::string stream = ", bf16 stream";
  if (const size_t at = mode.find(stream); at != mode.npos) mode.erase(at, stream.size());
  return mode;
}

Facts memory_mixed(const Evidence& evidence) {
  const TableRows rows = evidence.rows("peaks").with({"peak"});
  RowPairs both;
  for (const TableRow& half : rows.where({{"precision", "bf16"}})) {
    const auto is_same = [&](const TableRow& row) { return pass_of(row) == pass_of(half); };
    const TableRows alike = rows.if_(is_same).like(half, {"size", "context"});
    if (const TableRow full = alike.first({{"precision", "fp32"}})) both.push_back({half, full});
  }
  if (both.empty()) return {};
  Facts facts = {.rows = both.last().rows()};
  facts.table.columns = {measure::text_column("size"),
                         measure::integer_column("context"),
                         measure::text_column("mode"),
                         measure::number_column("fp32 peak", "MiB", 2),
                         measure::number_column("bf16 peak", "MiB", 2),
                         measure::number_column("change", "%", 1)};
  for (const auto& [half, full] : both) {
    const double to = half.number("peak"), from = full.number("peak");
    facts.table.add_row({full.text("size"), full.cell("context"), full.text("mode"), from, to,
                         100 * (to / from - 1)});
  }
  say_in_gibibytes(facts.table);
  facts.words["tally"] = Tally(both, "peak").words("lower", "the same within 2 %", "higher");
  add_reason_of_change(both, facts.words);
  return facts;
}

// Of a float32 stream, which is asked for, where it was measured.
Facts memory_residual(const Evidence& evidence) {
  const TableRows all = evidence.rows("residual");
  const TableRows full = all.if_([](const TableRow& row) {
    return row.text("derivation").find(" 4 bytes") != std::string::npos;
  });
  const TableRows& rows = full.empty() ? all : full;
  return {{{"agrees", against_formula(rows.with({"measured"}), "measured", "formula")}},
          {{"", rows.back()}},
          rows};
}

// "80.0 MiB, 96 times: by `aten::mm` (64) and `aten::silu` (32)": the largest of these allocations.
std::string largest_words(const TableRows& rows) {
  const TableRow most = rows.most("bytes");
  double count = 0;
  std::vector<std::string> makers;
  for (const TableRows& made : rows.where({{"bytes", most.text("bytes")}}).by({"made by"})) {
    const double times = made.sum("count");
    count += times;
    makers.push_back(str("`", made.front().text("made by"), "` (", times, ")"));
  }
  if (makers.empty()) return "";
  return str(memory_words(most.number("bytes")), ", ", count, " times: ", most.text("kind"),
             " made by ", join(makers));
}

// Of the last forward pass of the table: what was there before it, and what it makes itself.
Facts memory_largest(const Evidence& evidence) {
  const TableRows rows = evidence.rows("largest").where({{"mode", "forward"}});
  if (rows.empty()) return {};
  const TableRows pass = rows.like(rows.front(), {"precision"}).by(kPass).back();
  const TableRows made =
      pass.if_([](const TableRow& row) { return row.text("range").starts_with("forward"); });
  const std::string range = made.most("bytes").text("range");
  return {{{"made", largest_words(made)},
           {"before", largest_words(pass.where({{"kind", "parameters"}}))},
           {"in", range.substr(range.rfind('/') + 1)}},
          {{"", pass.front()}},
          pass};
}

Facts memory_block(const Evidence& evidence) {
  const TableRows rows = evidence.rows("block");
  const TableRow last = rows.like(rows.front(), {"precision"}).back();
  const TableRows of_last = evidence.rows("operators").like(last, {"size", "context", "precision"});
  return {{{"as saved", against_formula(rows, "saved", "formula")},
           {"as gradients",
            against_formula(rows.with({"gradients", "expected"}), "gradients", "expected")}},
          {{"", last}, {"top", of_last.front()}},
          of_last};
}

}  // namespace

Answers memory_answers() {
  return {{"memory_timeline", memory_timeline}, {"memory_peaks", memory_peaks},
          {"memory_mixed", memory_mixed},       {"memory_residual", memory_residual},
          {"memory_largest", memory_largest},   {"memory_block", memory_block}};
}

}  // namespace flashstep::tools
