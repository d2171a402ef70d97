// Answers about the time of a training step.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

const Columns kStepCase = {"model", "context", "precision", "attention", "mode"};
const Columns kStepTimes = {"model",   "context", "precision", "attention", "mode",
                            "warm-up", "mean",    "deviation", "forward",   "backward"};
// A deviation that does not move a conclusion.
constexpr double kSmallDeviation = 0.05;

std::string step_case(const TableRow& row) {
  return say("{model}, context {context}, {precision}", row);
}

double deviation_share(const TableRow& row) { return row.number("deviation") / row.number("mean"); }

Facts step_program(const Evidence& evidence) {
  const TableRows rows = evidence.rows("step", kStepTimes);
  if (rows.empty()) return {};
  return {{{"command", rows.front().result->made.command},
           {"timed", str(rows.with({"mean"}).size())},
           {"cases", count_of(rows.size(), "case")}}};
}

// What bf16 makes of forward and backward together.
std::string gain_of_bf16(const TableRows& rows) {
  std::vector<double> gains;
  const auto both = pairs(rows, {{"precision", "bf16"}}, {{"precision", "fp32"}}, {"model"});
  for (const auto& [half, full] : both) {
    gains.push_back((full.number("forward") + full.number("backward")) /
                    (half.number("forward") + half.number("backward")));
  }
  if (gains.empty()) return "";
  const auto [least, most] = std::minmax_element(gains.begin(), gains.end());
  const auto words = [&](auto gain) {
    return str(fixed(*gain, 2), " (",
               both[static_cast<size_t>(gain - gains.begin())].a.text("model"), ")");
  };
  return (least == most ? "" : words(least) + " to ") + words(most);
}

Facts step_times(const Evidence& evidence) {
  const TableRows all =
      evidence.rows("step", kStepTimes)
          .if_([](const TableRow& row) { return row.text("warm-up") != "0"; })
          .once(kStepCase);  // other commands of a preset measure some cases once more
  const TableRows timed = all.with({"forward", "backward"});
  if (timed.empty()) return {};
  TableRows shown = timed.where({{"context", timed.most("context").text("context")}});
  const TableRows first = shown.by({"precision"}).front();
  std::vector<double> times_forward;
  for (const TableRow& row : first)
    times_forward.push_back(row.number("backward") / row.number("forward"));
  const TableRow shakiest =
      *std::max_element(timed.begin(), timed.end(), [](const TableRow& a, const TableRow& b) {
        return !(deviation_share(b) <= deviation_share(a));
      });
  const std::string gain = gain_of_bf16(shown);
  if (!shown.first({{"context", shakiest.text("context")}})) shown.add(shakiest);
  // A size's name is the handout's; how large it is, is the model's.
  const auto forward = [](const TableRow& row) {
    return say("{forward|ms} ({model}[, {parameters|3} M parameters])", row);
  };
  const TableRow least = first.least("forward"), longest = first.most("forward");
  const double most = deviation_share(shakiest);
  const size_t no_room = all.where({{"mean", "OOM"}}).size();
  return {.words = {{"forward", least.index == longest.index
                                    ? forward(longest)
                                    : forward(least) + " to " + forward(longest)},
                    {"backward", extremes(first, "backward", "ms", "model")},
                    {"longer", span_of(times_forward, 1)},
                    {"gain", gain},
                    {"most", percent(most, 1)},
                    {"case", step_case(shakiest)},
                    {"vary", which(!(most <= kSmallDeviation))},
                    {"none", no_room > 0 ? count_of(no_room, "case") : ""}},
          .rows = {{"", first.front()}},
          .shown = shown,
          .picture = {str("_n", shown.front().number("context"), "_"),
                      shown.front().text("precision")}};
}

Facts step_warmup(const Evidence& evidence) {
  for (const TableRows& table : evidence.tables("step", kStepTimes)) {
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
      for (const TableRow& row : rows) facts.shown.add(row);
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
  Columns columns = kStepTimes;
  columns.insert(columns.end(), {"compiled", "tokens"});
  const TableRows rows = evidence.rows("step", columns);
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

}  // namespace

void add_step_answers(Answers& answers) {
  answers["step_program"] = step_program;
  answers["step_times"] = step_times;
  answers["step_warmup"] = step_warmup;
  answers["step_compiled"] = step_compiled;
}

}  // namespace flashstep::tools
