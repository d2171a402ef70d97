// Answers about attention: the plain formula, what compiling it brings, and tiled kernels.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

const Columns kGridCase = {"dtype", "D", "N"};
const Columns kRaceCase = {"dtype", "pass", "mask", "B", "H"};
const Columns kRace = {"dtype", "N", "D", "mask", "pass", "ours", "time", "x best peer"};

TableRows grid_rows(const Evidence& evidence) {
  return evidence.rows("attention_grid",
                       {"contestant", "dtype", "D", "N", "forward", "backward", "before backward"});
}

// The kernel of this device among the grid's contestants.
std::string our_kernel(const TableRows& rows) {
  for (const char* name : {"cuda", "cpu"}) {
    if (rows.first({{"contestant", name}})) return name;
  }
  return "auto";
}

// " with the square of the length": how a column grows between the two longest lengths of the last
// head dim; "" without two of them.
std::string growth_with_length(const TableRows& formula, const std::string& column) {
  const TableRows known = formula.if_([&](const TableRow& row) { return row.number(column) > 0; });
  if (known.empty()) return "";
  const TableRows longest =
      known.where({{"D", known.back().text("D")}, {"dtype", known.back().text("dtype")}});
  if (longest.size() < 2) return "";
  const TableRow &b = longest.back(), &a = longest[longest.size() - 2];
  const double power =
      std::log(b.number(column) / a.number(column)) / std::log(b.number("N") / a.number("N"));
  return str(power > 2.5   ? "faster than the square of the length"
             : power > 1.5 ? "with the square of the length"
             : power > 0.7 ? "about with the length"
                           : "more slowly than the length",
             " (N^", fixed(power, 1), ")");
}

// The first of the formula's cases without room, and what it would have needed.
std::string where_memory_ends(const TableRows& formula) {
  const TableRow none = formula
                            .if_([](const TableRow& row) {
                              return row.text("forward") == "OOM" || row.text("backward") == "OOM";
                            })
                            .least("N");
  if (!none)
    return str("No case of the formula runs out of memory here, up to N ",
               formula.most("N").text("N"), ".");
  const double n = none.number("N"), element = none.text("dtype") == "fp32" ? 4 : 2;
  const double gigabytes = none.number("B") * n * n * element / (1 << 30);
  return str("Plain attention runs out of memory at N ", none.text("N"), " (", none.text("dtype"),
             ", D ", none.text("D"), "), where one (B, N, N) matrix is ", none.text("B"), " x ",
             none.text("N"), "^2 x ", element, " bytes = ", three_digits(gigabytes), " GiB.");
}

Finding attention_memory(const Evidence& evidence) {
  const TableRows rows = grid_rows(evidence), formula = rows.where({{"contestant", "naive"}});
  if (formula.empty()) return {};
  Finding finding = {.sentences = {where_memory_ends(formula)}};
  // Memory of tensors is counted on GPUs alone.
  const bool counted = !formula.numbers("before backward").empty();
  const std::string column = counted ? "before backward" : "backward";
  const char* what = counted ? "memory that it keeps for backward" : "time of its backward pass";
  const std::string growth = growth_with_length(formula, column);
  const std::string ours = our_kernel(rows);
  const auto both = pairs(rows, {{"contestant", ours}}, {{"contestant", "naive"}}, kGridCase);
  const auto smaller = ratios(both, column);
  if (!growth.empty()) finding.sentences.push_back(str("The ", what, " grows ", growth, "."));
  if (!smaller.empty()) {
    finding.sentences.push_back(str(
        "Computing in tiles (FlashAttention-2) stores no (N, N) matrix: at the longest length of "
        "both the ",
        what, " is ",
        compare_measured(smaller.back(), 1) > 0
            ? three_digits(smaller.back()) + " times smaller."
            : "NOT smaller (" + fixed(smaller.back(), 2) + " of the formula's over its own)."));
  }
  const TableRow last = formula.with({"backward"}).back();
  const double longest = formula.most("N").number("N");
  finding.table = list(
      rows.where({{"dtype", last.text("dtype")}, {"D", last.text("D")}})
          .if_([&](const TableRow& row) {
            const bool long_ = row.number("N") >= longest / 16;
            return long_ && (row.text("contestant") == "naive" || row.text("contestant") == ours);
          }),
      {"contestant", "N", "forward", "backward", "before backward", "backward peak"});
  finding.picture = {counted ? "grid_memory" : "grid_time"};
  return finding;
}

Finding attention_compiled(const Evidence& evidence) {
  const TableRows rows = grid_rows(evidence);
  const auto both = pairs(rows, {{"contestant", "compiled"}}, {{"contestant", "naive"}}, kGridCase);
  const auto forward = ratios(both, "forward"), backward = ratios(both, "backward");
  if (forward.empty() || backward.empty()) return {};
  Finding finding = {.sentences = {str("Through torch.compile the formula is forward ",
                                       speeds(forward, "without it"), "."),
                                   str("Backward it is ", speeds(backward, "without it"), ".")},
                     .picture = {"grid_time"}};
  const auto kept = ratios(both, "before backward");
  if (!kept.empty()) {
    const double share = 1 / measure::geometric_mean(kept);
    const int order = compare_measured(share, 1);
    finding.sentences.push_back(
        str("It keeps ", percent(share), " of the formula's memory for backward: ",
            order < 0    ? "part of the (N, N) matrices is not stored any more."
            : order == 0 ? "the (N, N) matrices are stored all the same."
                         : "more is stored than without it."));
  }
  return finding;
}

// Whether ours agree with float64, in every case of these passes that was measured.
AnswerFunction rightness(const Columns& passes, const std::string& what) {
  return [passes, what](const Evidence& evidence) -> Finding {
    const TableRows rows =
        evidence.rows("attention", {"dtype", "N", "mask", "pass", "contestant", "whose", "wrong"})
            .where({{"whose", "ours"}})
            .with({"wrong"})
            .if_([&](const TableRow& row) {
              return std::find(passes.begin(), passes.end(), row.text("pass")) != passes.end();
            });
    if (rows.empty()) return {};
    const TableRows broken = rows.if_([](const TableRow& row) { return row.number("wrong") != 0; });
    Finding finding;
    if (broken.empty()) {
      finding.sentences.push_back(
          str("Right: in ", count_of(rows.size(), "run"), " of ",
              count_of(rows.distinct("contestant").size(), "kernel"),
              " (masks: ", join(rows.distinct("mask")), ") no element of ", what,
              " is further from the formula in float64 than twice the formula's own error in the "
              "same dtype."));
    } else {
      double wrong = 0;
      for (const TableRow& row : broken) wrong += row.number("wrong");
      finding.sentences.push_back(
          str("NOT right: ", fixed(wrong, 0), " elements of ", what, " in ", broken.size(), " of ",
              count_of(rows.size(), "run"), " (mask: ", join(broken.distinct("mask")),
              ") are further from the formula in float64 than twice its own error in the same "
              "dtype."));
    }
    const TableRow worst = rows.most("error");
    if (worst && broken.empty())
      finding.sentences.push_back(str("The largest error is ", fixed(worst.number("error"), 2),
                                      " of what is allowed (", worst.text("contestant"), ", ",
                                      worst.text("dtype"), ", N ", worst.text("N"), ")."));
    for (const char* mask : {"causal", "full"}) {
      if (rows.where({{"mask", mask}}).empty())
        finding.sentences.push_back(str("No case with the mask ", mask, " was measured."));
    }
    return finding;
  };
}

// Of one dtype, pass, mask and batch, over lengths and head dims.
struct Race {
  std::string name;
  double peers = NAN, least = NAN, formula = NAN;
  size_t cases = 0;
};
Race race_of(const TableRows& rows) {
  Race race;
  const TableRow& row = rows.front();
  race.name = str(row.text("dtype"), " ", row.text("pass"));
  if (rows.has("H") && row.text("H") != "1") race.name += ", " + row.text("H") + " heads";
  race.name += row.text("mask") == "causal" ? "" : ", mask " + row.text("mask");
  const std::vector<double> peers = rows.numbers("x best peer");
  std::vector<double> formula;
  for (const TableRow& each : rows.with({"naive"}))
    formula.push_back(each.number("naive") / each.number("time"));
  race.cases = peers.size();
  if (peers.empty()) return race;
  race.peers = measure::geometric_mean(peers);
  race.least = *std::min_element(peers.begin(), peers.end());
  if (!formula.empty()) race.formula = measure::geometric_mean(formula);
  return race;
}

Finding attention_race(const Evidence& evidence) {
  measure::Table table;
  table.columns = {measure::text_column("passes"), measure::integer_column("cases"),
                   measure::number_column("speed beside the best other kernel", "x", 2),
                   measure::number_column("at least", "x", 2),
                   measure::number_column("beside the formula", "x", 2)};
  std::vector<Race> races;
  for (const TableRows& rows : evidence.rows("attention", kRace).by(kRaceCase)) {
    const Race race = race_of(rows);
    if (race.cases == 0) continue;
    races.push_back(race);
    table.add_row({race.name, race.cases, race.peers, race.least,
                   std::isnan(race.formula) ? measure::Cell() : measure::Cell(race.formula)});
  }
  if (races.empty()) return {};
  const auto by_peers = [](const Race& a, const Race& b) { return a.peers < b.peers; };
  const auto [slow, fast] = std::minmax_element(races.begin(), races.end(), by_peers);
  Tally tally;
  std::vector<double> formula;
  for (const Race& race : races) {
    tally.add(race.peers, 1);
    if (!std::isnan(race.formula)) formula.push_back(race.formula);
  }
  Finding finding;
  finding.sentences.push_back(
      str("Our attention is ",
          races.size() > 1 ? str(fixed(slow->peers, 2), " (", slow->name, ") to ") : "",
          fixed(fast->peers, 2), " (", fast->name,
          ") times as fast as the best other kernel (geometric means): ",
          tally.words("slower", "as fast within 2 %", "faster"), "."));
  if (!formula.empty())
    finding.sentences.push_back(
        str("It is ", span_of(formula, 1), " times as fast as the formula."));
  finding.table = table;
  finding.picture = {"_time_", "_forward_"};
  return finding;
}

Finding attention_leaderboard(const Evidence& evidence) {
  const TableRow row = evidence.rows("leaderboard", kRace).with({"time"}).first({{"pass", "both"}});
  if (!row) return {};
  Finding finding = {.sentences = {str("Forward and backward (bf16, causal, 16 heads of 64, N ",
                                       row.text("N"), ") take ", milliseconds(row.number("time")),
                                       " with our kernel, ", speed_words(row.number("x best peer")),
                                       " the best other, ", row.text("best peer"), ".")},
                     .picture = {"leaderboard"}};
  if (row.number("auto") > 0 && row.text("auto takes") != row.text("ours"))
    finding.sentences.push_back(str("`auto` takes `", row.text("auto takes"),
                                    "` there: ", milliseconds(row.number("auto")), "."));
  return finding;
}

}  // namespace

void add_attention_answers(Answers& answers) {
  answers["attention_memory"] = attention_memory;
  answers["attention_compiled"] = attention_compiled;
  answers["attention_forward_right"] = rightness({"forward"}, "the output");
  answers["attention_backward_right"] = rightness({"backward", "both"}, "a gradient");
  answers["attention_race"] = attention_race;
  answers["attention_leaderboard"] = attention_leaderboard;
}

}  // namespace flashstep::report
