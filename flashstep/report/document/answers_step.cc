// Answers about the time of a training step.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

const Columns kStepCase = {"model", "context", "precision", "attention", "mode"};
const Columns kStepTimes = {"model",   "context", "precision", "attention", "mode",
                            "warm-up", "mean",    "deviation", "forward",   "backward"};
// A deviation that does not move a conclusion.
constexpr double kSmallDeviation = 0.05;

std::string step_case(const TableRow& row) {
  return str(row.text("model"), ", context ", row.text("context"), ", ", row.text("precision"));
}

double deviation_share(const TableRow& row) { return row.number("deviation") / row.number("mean"); }

Finding step_program(const Evidence& evidence) {
  const TableRows rows = evidence.rows("step", kStepTimes);
  if (rows.empty()) return {};
  return {
      .sentences = {
          str("`", rows.front().result->made.command,
              "` times forward, backward and optimizer of models given by size or by their "
              "hyper-parameters, on random tokens, and waits for the device after each step."),
          str(rows.with({"mean"}).size(), " of ", count_of(rows.size(), "case"), " were timed.")}};
}

// "In fp32 at context 512 a forward pass takes ... and a backward pass ...".
std::string passes_by_size(const TableRows& rows) {
  std::vector<double> times_forward;
  for (const TableRow& row : rows)
    times_forward.push_back(row.number("backward") / row.number("forward"));
  return str("In ", rows.front().text("precision"), " at context ", rows.front().text("context"),
             " a forward pass takes ", extremes(rows, "forward", "ms", "model"),
             " and a backward pass ", extremes(rows, "backward", "ms", "model"), ", ",
             span_of(times_forward, 1), " times as long.");
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
  return str("bf16 makes both together ", least == most ? "" : words(least) + " to ", words(most),
             " times as fast.");
}

Finding step_times(const Evidence& evidence) {
  const TableRows all =
      evidence.rows("step", kStepTimes)
          .if_([](const TableRow& row) { return row.text("warm-up") != "0"; })
          .once(kStepCase);  // other commands of a preset measure some cases once more
  const TableRows timed = all.with({"forward", "backward"});
  if (timed.empty()) return {};
  const TableRows shown =
      timed.where({{"context", timed.most("context").text("context")}});  // the longest
  Finding finding;
  finding.sentences.push_back(passes_by_size(shown.by({"precision"}).front()));
  const std::string gain = gain_of_bf16(shown);
  if (!gain.empty()) finding.sentences.push_back(gain);
  const TableRow shakiest =
      *std::max_element(timed.begin(), timed.end(), [](const TableRow& a, const TableRow& b) {
        return !(deviation_share(b) <= deviation_share(a));
      });
  const double most = deviation_share(shakiest);
  const size_t no_room = all.where({{"mean", "OOM"}}).size();
  finding.sentences.push_back(str(
      "The standard deviation is at most ", percent(most, 1), " of the mean (", step_case(shakiest),
      "): ", most <= kSmallDeviation ? "times hardly vary" : "times vary from step to step",
      no_room > 0 ? "; " + count_of(no_room, "case") + " did not fit into memory" : "", "."));
  finding.table = list(shown, {"model", "precision", "forward", "backward", "optimizer", "mean",
                               "deviation", "peak memory"});
  finding.picture = {"step_parts", str("_n", shown.front().number("context"), "_"),
                     shown.front().text("precision")};
  return finding;
}

// How many times as long the mean is without warm-up, and from how many steps on it is settled: no
// further from the mean with the most warm-up than that varies anyway.
struct WarmUp {
  double ratio = NAN;
  std::string enough;
  bool matters = false;
};
WarmUp warm_up_of(const TableRows& rows) {
  const TableRow settled = rows.most("warm-up"), none = rows.first({{"warm-up", "0"}});
  const double mean = settled.number("mean");
  const double allowed = std::fmax(kSmallDeviation * mean, settled.number("deviation"));
  WarmUp found = {none.number("mean") / mean, settled.text("warm-up"),
                  none.number("mean") - mean > allowed};
  for (size_t i = rows.size(); i-- > 0;) {
    if (!(std::abs(rows[i].number("mean") - mean) <= allowed)) break;
    found.enough = rows[i].text("warm-up");
  }
  return found;
}

Finding step_warmup(const Evidence& evidence) {
  for (const TableRows& table : evidence.tables("step", kStepTimes)) {
    if (table.distinct("warm-up").size() < 2) continue;
    evidence.use(table);
    std::vector<std::string> cases;
    TableRows shown;
    size_t matters = 0;
    for (const TableRows& rows : table.with({"mean"}).by(kStepCase)) {
      const WarmUp found = warm_up_of(rows);
      if (std::isnan(found.ratio)) continue;
      matters += found.matters;
      cases.push_back(str(fixed(found.ratio, 2), " times (", rows.front().text("model"),
                          ", settled after ", found.enough, ")"));
      for (const TableRow& row : rows) shown.add(row);
    }
    if (cases.empty()) return {};
    const bool slower = 2 * matters > cases.size();
    return {.sentences = {str("Without warm-up the mean step takes as many times as long as with "
                              "the most: ",
                              join(cases), "."),
                          slower ? "What is done once falls into the first steps: memory from the "
                                   "system, kernels that are loaded, algorithms that are chosen, "
                                   "AdamW's state; these times do not tell them apart."
                                 : "Here the first steps cost no more than the others vary "
                                   "anyway."},
            .table = list(shown, {"model", "precision", "warm-up", "mean", "deviation"}),
            .picture = {"step_warmup"}};
  }
  return {};
}

Finding step_compiled(const Evidence& evidence) {
  Columns columns = kStepTimes;
  columns.insert(columns.end(), {"compiled", "tokens"});
  const TableRows rows = evidence.rows("step", columns);
  std::vector<double> gains, ours;
  for (const TableRow& row : rows) {
    const double compiled = row.number("compiled"), eager = row.number("eager");
    if (compiled > 0 && eager > 0) gains.push_back(compiled / eager);
    if (compiled > 0) ours.push_back(row.number("tokens") / compiled);
  }
  Finding finding;
  if (!gains.empty()) {
    finding.sentences.push_back(
        str("torch.compile makes PyTorch's model ", speeds(gains, "without it"), ": ",
            measure::geometric_mean(gains) > 1.02 ? "fusing element-wise operations pays."
                                                  : "it does not pay here."));
  }
  if (!ours.empty())
    finding.sentences.push_back(
        str("flashstep is ", speeds(ours, "the compiled model"), " in tokens a second."));
  finding.table = list(rows.with({"compiled"}),
                       {"model", "context", "precision", "mode", "eager", "compiled", "tokens"});
  return finding;
}

}  // namespace

void add_step_answers(Answers& answers) {
  answers["step_program"] = step_program;
  answers["step_times"] = step_times;
  answers["step_warmup"] = step_warmup;
  answers["step_compiled"] = step_compiled;
}

}  // namespace flashstep::report
