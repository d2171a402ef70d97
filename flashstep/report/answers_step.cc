// Answers about the time of a training step, and about mixed precision.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/profile/precision.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

const Columns kStepCase = {"model", "context", "precision", "attention", "mode"};
// A deviation that does not move a conclusion.
constexpr double kSmallDeviation = 0.05;

// The largest standard deviation: of the whole step, over its mean, or of a pass, over its median;
// and whose it is, "" for the step.
std::pair<double, std::string> most_deviation(const TableRow& row) {
  std::pair<double, std::string> most = {row.number("deviation") / row.number("mean"), ""};
  for (const char* pass : {"forward", "backward"}) {
    const double share = row.number(str(pass, " deviation")) / row.number(pass);
    if (share > most.first) most = {share, str("the ", pass, " pass")};
  }
  return most;
}
double deviation_share(const TableRow& row) { return most_deviation(row).first; }

Facts step_program(const Evidence& evidence) {
  const TableRows all = evidence.rows("step");
  if (all.empty()) return {};
  // The command that is named, not those of the preset's other contexts.
  const TableRows rows =
      all.if_([&](const TableRow& row) { return row.result == all.front().result; });
  return {{{"command", rows.front().result->made.command},
           {"timed", str(rows.with({"mean"}).size())},
           {"cases", count_of(rows.size(), "case")}}};
}

// What bf16 makes of forward and backward together.
std::string gain_of_bf16(const TableRows& rows) {
  std::vector<std::pair<double, std::string>> gains;
  for (const auto& [half, full] : pairs(rows, "precision", "bf16", "fp32", {"model"})) {
    const double gain = (full.number("forward") + full.number("backward")) /
                        (half.number("forward") + half.number("backward"));
    gains.emplace_back(gain, say("{gain} ({model})", half, {{"gain", fixed(gain, 2)}}));
  }
  return span_of(std::move(gains));
}

Facts step_times(const Evidence& evidence) {
  const TableRows all =
      evidence.rows("step")
          .if_([](const TableRow& row) { return row.text("warm-up") != "0"; })
          .once(kStepCase);  // other commands of a preset measure some cases once more
  const TableRows timed = all.with({"forward", "backward"});
  if (timed.empty()) return {};
  TableRows shown = timed.where({{"context", timed.most("context").text("context")}});
  const TableRows first = shown.by({"precision"}).front();
  std::vector<double> times_forward;
  for (const TableRow& row : first)
    times_forward.push_back(row.number("backward") / row.number("forward"));
  const TableRow shakiest = std::ranges::max(
      timed, [](double a, double b) { return !(b <= a); }, deviation_share);
  const std::string gain = gain_of_bf16(shown);
  const TableRows short_stream = shown.if_([](const TableRow& row) {
    return row.text("mode").find("bf16 stream") != std::string::npos;
  });
  if (!shown.first({{"context", shakiest.text("context")}})) shown.push_back(shakiest);
  const auto [most, whose] = most_deviation(shakiest);
  const size_t no_room = all.where({{"mean", "OOM"}}).size();
  // A size's name is the handout's; how large it is, is the model's.
  const std::string forward = "{forward|ms} ({model}[, {parameters|3} M parameters])";
  return {.words = {{"forward", extremes(first, "forward", forward)},
                    {"backward", extremes(first, "backward", "{backward|ms} ({model})")},
                    {"longer", span_of(times_forward, 1)},
                    {"gain", gain},
                    {"short", short_stream.empty() ? "" : "residual stream and gradients"},
                    {"most", percent(most, 1)},
                    {"whole", whose.empty() ? "mean" : "median of " + whose},
                    {"vary", which(!(most <= kSmallDeviation))},
                    {"none", no_room > 0 ? count_of(no_room, "case") : ""}},
          .rows = {{"", first.front()}, {"shakiest", shakiest}},
          .shown = shown,
          .picture = {shown.front().result->measurement + "_",
                      str("_n", shown.front().number("context"), "_"),
                      shown.front().text("precision")}};
}

Facts step_warmup(const Evidence& evidence) {
  for (const TableRows& table : evidence.tables("step")) {
    if (table.distinct("warm-up").size() < 2) continue;
    evidence.use(table);
    const TableRow most = table.most("warm-up");
    const auto is_less = [&](const TableRow& row) {
      return row.number("warm-up") < most.number("warm-up");
    };
    Columns cases;
    Facts facts;
    size_t matters = 0;
    for (const TableRows& rows : table.with({"mean"}).by(kStepCase)) {
      const TableRow none = rows.first({{"warm-up", "0"}}), settled = rows.back();
      if (!none || is_less(settled)) continue;
      const double mean = settled.number("mean"), varies = settled.number("deviation");
      matters += none.number("mean") - mean > std::fmax(kSmallDeviation * mean, varies);
      Columns times;
      for (const TableRow& row : rows.if_(is_less))
        times.push_back(fixed(row.number("mean") / mean, 2));
      cases.push_back(join(times) + " (" + none.text("model") + ")");
      for (const TableRow& row : rows) facts.shown.push_back(row);
    }
    if (cases.empty()) return {};
    facts.words = {{"few", join(table.if_(is_less).distinct("warm-up"))},
                   {"most", most.text("warm-up")},
                   {"cases", join(cases, "; ")},
                   {"slower", which(2 * matters > cases.size())}};
    return facts;
  }
  return {};
}

Facts step_compiled(const Evidence& evidence) {
  const TableRows rows = evidence.rows("compiled");
  std::vector<double> gains, ours;
  for (const TableRow& row : rows) {
    const double compiled = row.number("compiled"), eager = row.number("eager");
    if (compiled > 0 && eager > 0) gains.push_back(compiled / eager);
    if (compiled > 0) ours.push_back(row.number("tokens") / compiled);
  }
  return {{{"gain", speeds(gains, "without it")},
           {"pays", which(measure::geometric_mean(gains) > 1.02)},
           {"ours", speeds(ours, "the compiled model")}},
          {},
          rows.with({"compiled"})};
}

// ---- Mixed precision

constexpr double kShaky = 1.1;  // p90 over p10 of a pass that waits for its launches

// "a, b and c"
std::string listed(Columns names) {
  if (names.size() < 2) return join(names);
  const std::string last = names.back();
  names.pop_back();
  return join(names) + " and " + last;
}

Facts sums_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows("sums");
  const auto sum = [&](const char* dtypes) { return rows.first({{"sum + addend", dtypes}}); };
  const TableRow half = sum("float16 + float16"), mixed = sum("float32 + float16"),
                 cast = sum("float32 + float16 cast to float32");
  if (!half || !mixed || !cast) return {};
  const double of_half = std::abs(half.number("error")), of_mixed = std::abs(mixed.number("error"));
  const bool by_sum =
      std::abs(half.number("from the sum")) > std::abs(half.number("from the addend"));
  return {{{"off", three_digits(of_half)},
           {"by", which(by_sum)},
           {"mixed off", three_digits(of_mixed)},
           {"better", which(of_mixed < of_half)},
           {"same", which(mixed.number("result") == cast.number("result"))}},
          {{"", half}},
          rows};
}

Facts dtypes_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows("dtypes");
  if (rows.empty()) return {};
  const bool gpu = column_named(*rows.front().table, "CUDA, float16").has_value();
  const std::string column = gpu ? "CUDA, float16" : "CPU, float16";
  Columns parts;
  for (const TableRows& same : rows.by({column}))
    parts.push_back(listed(same.distinct("tensor")) + " are " + same.front().text(column));
  const TableRows different = rows.if_(
      [](const TableRow& row) { return row.text("CPU, float16") != row.text("CUDA, float16"); });
  return {{{"gpu", which(gpu)},
           {"dtypes", join(parts, "; ")},
           {"rules", !gpu                ? "0"
                     : different.empty() ? "1"
                                         : "2"},
           {"different", listed(different.distinct("tensor"))}},
          {},
          rows};
}

// Steps of LayerNorm, however they are summed, that err far more in a dtype ("fp16") than rounding
// the result does, with one of the inputs (the columns "fp16 sd 300"): those that overflow, and
// those that lose digits.
struct Suffering {
  bool known = false;
  Columns overflow, inexact;
};
Suffering suffering_in(const TableRows& rows, const std::string& dtype) {
  Suffering found;
  const TableRow rounded = rows.first({{"norm", "LayerNorm"}, {"in 16 bits", "result rounded"}});
  for (const TableRow& row : rows.where({{"norm", "LayerNorm"}})) {
    const std::string step = row.text("in 16 bits");
    if (!rounded || step == "result rounded" || step.rfind("all, ", 0) == 0) continue;
    bool overflows = false, errs = false;
    for (const measure::Column& column : row.table->columns) {
      if (column.name.rfind(dtype + " ", 0) != 0) continue;
      found.known = true;
      const double error = row.number(column.name);
      overflows |= std::isnan(error);
      errs |= error > kSufferingFactor * rounded.number(column.name);
    }
    const std::string name = step.substr(0, step.find(", summed"));
    Columns& those = overflows ? found.overflow : found.inexact;
    if ((errs || overflows) && !contains(those, name)) those.push_back(name);
  }
  std::erase_if(found.inexact, [&](const auto& name) { return contains(found.overflow, name); });
  return found;
}

std::string suffering_words(const Suffering& suffering) {
  std::vector<std::string> parts;
  if (!suffering.overflow.empty()) parts.push_back(listed(suffering.overflow) + " overflow");
  if (!suffering.inexact.empty())
    parts.push_back("digits are lost in " + listed(suffering.inexact));
  return parts.empty() ? "no step suffers" : join(parts, ", and ");
}

Facts norms_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows("norms in 16 bits");
  const Suffering half = suffering_in(rows, "fp16"), brain = suffering_in(rows, "bf16");
  if (!half.known || !brain.known) return {};
  return {{{"float16", suffering_words(half)},
           {"bfloat16", suffering_words(brain)},
           {"better", which(!half.overflow.empty() && brain.overflow.empty())},
           {"care", which(!brain.inexact.empty() || !brain.overflow.empty())}},
          {},
          rows.where({{"norm", "LayerNorm"}})};
}

Facts sizes_facts(const Evidence& evidence) {
  const TableRows all = evidence.rows("sizes"), rows = all.with({"gain forward", "gain backward"});
  if (rows.empty()) return {};
  const auto gain = [](const TableRow& row) {
    return (row.number("fp32 forward") + row.number("fp32 backward")) /
           (row.number("bf16 forward") + row.number("bf16 backward"));
  };
  const auto gain_words = [&](const TableRow& row) {
    return say("{gain} ({model})", row, {{"gain", fixed(gain(row), 2)}});
  };
  const auto does_not_grow = [](double a, double b) { return compare_measured(a, b) >= 0; };
  const bool grows = std::ranges::adjacent_find(rows, does_not_grow, gain) == rows.end();
  TableRow shakiest;
  double most = 0;
  for (const TableRow& row : evidence.rows("passes")) {
    const double spread = row.number("p90") / row.number("p10");
    if (spread > kShaky && spread > most) shakiest = row, most = spread;
  }
  return {{{"case", subject_of(rows)},
           {"forward", extremes(rows, "gain forward", "{gain forward} ({model})")},
           {"backward", extremes(rows, "gain backward", "{gain backward} ({model})")},
           {"smallest", rows.size() > 1 ? gain_words(rows.front()) : ""},
           {"largest", gain_words(rows.back())},
           {"grows", rows.size() > 1 ? which(grows) : ""},
           {"none", listed(all.where({{"fp32 forward", "OOM"}}).distinct("model"))},
           {"pass", shakiest.text("pass")},
           {"error", percent(rows.most("gradient error").number("gradient error"), 1)}},
          {{"vary", shakiest}},
          all};
}

}  // namespace

Answers step_answers() {
  return {{"step_program", step_program},   {"step_times", step_times},
          {"step_warmup", step_warmup},     {"step_compiled", step_compiled},
          {"precision_sums", sums_facts},   {"precision_dtypes", dtypes_facts},
          {"precision_norms", norms_facts}, {"precision_sizes", sizes_facts}};
}

}  // namespace flashstep::tools
