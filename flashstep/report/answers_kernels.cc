// Answers about kernels by themselves: attention by its formula and in tiles, norms, the tokenizer,
// and what the machine does at most.
#include <algorithm>
#include <cmath>
#include <regex>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

const Columns kGridCase = {"dtype", "D", "N"};
const Columns kSpeedCase = {"dtype", "mask", "H", "D"};

// The kernel of this device among the grid's implementations.
std::string our_kernel(const TableRows& rows) {
  for (const char* name : {"cuda", "cpu"}) {
    if (rows.first({{"implementation", name}})) return name;
  }
  return "auto";
}

// "with the square of the length (N^2.0)": how a column grows between the two longest lengths of
// the last head dim; "" without two of them.
std::string growth_with_length(const TableRows& formula, const std::string& column) {
  const TableRows known = formula.if_([&](const TableRow& row) { return row.number(column) > 0; });
  const TableRows longest = known.like(known.back(), {"D", "dtype"});
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

// "139.8": the command says it below its table, where the formula ran out of memory.
std::string memory_of_gpu(const TableRow& row) {
  static const std::regex told("the device has ([^ ]*)");
  std::smatch found;
  const std::string notes = row ? join(row.table->notes, "\n") : "";
  return std::regex_search(notes, found, told) ? found.str(1) : "";
}

// The longest lengths of these implementations, down to a 16th.
TableRows longest_of(const TableRows& rows, const Columns& implementations) {
  const TableRows named = rows.if_(
      [&](const TableRow& row) { return contains(implementations, row.text("implementation")); });
  const double shortest = named.most("N").number("N") / 16;
  return named.if_([&](const TableRow& row) { return row.number("N") >= shortest; });
}

Facts attention_memory(const Evidence& evidence) {
  const TableRows rows = evidence.rows("grid"), formula = rows.where({{"implementation", "naive"}});
  if (formula.empty()) return {};
  // Memory of tensors is counted on GPUs alone.
  const bool counted = !formula.numbers("before backward").empty();
  const std::string column = counted ? "before backward" : "backward", ours = our_kernel(rows);
  // The first of the formula's cases without room, and what it would have needed.
  const TableRow none = formula
                            .if_([](const TableRow& row) {
                              return row.text("forward") == "OOM" || row.text("backward") == "OOM";
                            })
                            .least("N");
  const double n = none.number("N"), element = none.text("dtype") == "fp32" ? 4 : 2;
  const TableRow last = formula.with({"backward"}).back(), longest = formula.most("N");
  Facts facts = {
      .words = {{"ends", which(static_cast<bool>(none))},
                {"element", str(element)},
                {"memory", memory_of_gpu(none)},
                {"gigabytes", three_digits(none.number("B") * n * n * element / (1 << 30))},
                {"what",
                 counted ? "memory that it keeps for backward" : "time of its backward pass"},
                {"growth", growth_with_length(formula, column)}},
      .rows = {{"none", none}, {"longest", longest}},
      .shown = longest_of(rows.like(last, {"D", "dtype"}), {"naive", ours}),
      .picture = {counted ? "grid_memory_d" : "grid_time"}};
  const auto smaller = ratios(pairs(rows, "implementation", ours, "naive", kGridCase), column);
  if (smaller.empty()) return facts;
  const bool is_smaller = compare_measured(smaller.back(), 1) > 0;
  facts.words["smaller"] = which(is_smaller);
  facts.words["times"] = is_smaller ? three_digits(smaller.back()) : fixed(smaller.back(), 2);
  return facts;
}

Facts attention_compiled(const Evidence& evidence) {
  const TableRows rows = evidence.rows("grid");
  const auto both = pairs(rows, "implementation", "compiled", "naive", kGridCase);
  const TableRow last = both.last().a;
  const double kept = 1 / speed(both, "before backward");
  RowPair longest;
  for (const RowPair& pair : both) {
    if (pair.a.number("forward") > 0 && pair.b.number("forward") > 0) longest = pair;
  }
  const double at_last = longest.b.number("forward") / longest.a.number("forward");
  return {{{"forward", speeds(ratios(both, "forward"), "without it")},
           {"longest", std::isnan(at_last) ? "" : fixed(at_last, 2) + " times"},
           {"backward", speeds(ratios(both, "backward"), "without it")},
           {"kept", std::isnan(kept) ? "" : percent(kept)},
           {"order", which_order(compare_measured(kept, 1))}},
          {{"last", longest.a}},
          longest_of(rows.like(last, {"D", "dtype"}), {"naive", "compiled"})};
}

// Whether ours agree with float64, in every case of these passes that was measured.
AnswerFunction rightness(const Columns& passes, const std::string& what) {
  return [passes, what](const Evidence& evidence) -> Facts {
    const TableRows rows =
        evidence.rows("rightness").where({{"whose", "ours"}}).if_([&](const TableRow& row) {
          return contains(passes, row.text("pass"));
        });
    if (rows.empty()) return {};
    const TableRows broken = rows.if_([](const TableRow& row) { return row.number("wrong") != 0; });
    Facts facts = {{{"right", which(broken.empty())},
                    {"what", what},
                    {"runs", count_of(rows.size(), "run")},
                    {"kernels", count_of(rows.distinct("implementation").size(), "kernel")},
                    {"masks", join(rows.distinct("mask"))},
                    {"wrong", fixed(broken.sum("wrong"), 0)},
                    {"broken", str(broken.size())},
                    {"wrong masks", join(broken.distinct("mask"))}},
                   {{"", rows.most("error")}}};
    for (const char* mask : {"causal", "full"}) {
      if (rows.where({{"mask", mask}}).empty()) facts.cases.push_back({{{"mask", mask}}});
    }
    return facts;
  };
}

std::string inputs_of(const TableRow& row) {
  return say(
      str(row.text("dtype"), ", ", count_of(static_cast<size_t>(row.number("H")), "head"),
          row.text("mask") == "full" ? ", no mask" : ", " + row.text("mask"), ", head_dim {D}"),
      row);
}

// Times of one kind of inputs, with a head dim of 64 where there is one, beside the formula's.
measure::Table latencies(const TableRows& all) {
  TableRows told;
  for (const TableRows& rows : all.with({"time"}).by(kSpeedCase)) {
    if (rows.with({"naive"}).empty()) continue;
    if (told.empty() || told.front().number("D") != 64) told = rows;
  }
  measure::Table table;
  if (told.empty()) return table;
  const Columns passes = told.distinct("pass");
  table.columns = {measure::integer_column("N")};
  for (const std::string& pass : passes) {
    for (const std::string& whose : {pass, pass + ", formula"})
      table.columns.push_back(significant(whose, "ms", 3));
  }
  for (const TableRows& same : told.by({"N"})) {
    std::vector<measure::Cell> cells = {same.front().cell("N")};
    for (const std::string& pass : passes) {
      const TableRow row = same.first({{"pass", pass}});
      for (const char* whose : {"time", "naive"}) cells.push_back(row.cell(whose));
    }
    table.add_row(std::move(cells));
  }
  table.notes = {inputs_of(told.front()) + "; the other inputs are among all measurements."};
  return table;
}

Facts attention_speed(const Evidence& evidence) {
  Facts facts;
  std::vector<std::pair<double, std::string>> speeds;
  std::vector<double> formula;
  Tally all;
  for (const TableRows& rows : evidence.rows("speed").by(kSpeedCase)) {
    const TableRow row = rows.front();
    const std::vector<double> others = rows.numbers("x best peer");
    if (others.empty()) continue;
    for (const double other : others) all.add(other, 1);
    std::vector<double> naive;
    for (const TableRow& each : rows.with({"naive"}))
      naive.push_back(each.number("naive") / each.number("time"));
    if (!naive.empty()) formula.push_back(measure::geometric_mean(naive));
    const double mean = measure::geometric_mean(others);
    speeds.emplace_back(mean, str(fixed(mean, 2), " (", inputs_of(row), ")"));
  }
  if (speeds.empty()) return {};
  facts.table = latencies(evidence.rows("speed"));
  facts.words = {{"speeds", span_of(std::move(speeds))},
                 {"tally", all.words("slower", "as fast within 2 %", "faster")},
                 {"formula", span_of(formula, 1)}};
  return facts;
}

Facts attention_leaderboard(const Evidence& evidence) {
  const TableRow row = evidence.rows("leaderboard").first({{"pass", "both"}});
  const bool other = row.number("auto") > 0 && row.text("auto takes") != row.text("ours");
  return {{{"other", which(other)}}, {{"", row}}};
}

// ---- Norms

RowPairs norms(const TableRows& rows, const std::string& a, const std::string& b) {
  return pairs(rows, "implementation", a, b, {"rows", "width", "dtype", "pass"});
}

std::string norm_speeds(const RowPairs& both, const std::string& b) {
  return speeds(ratios(both, "median"), b);
}

// "2.10 (forward) and 1.80 (forward-backward)": how many times as fast a is.
std::string by_pass(const TableRows& rows, const std::string& a, const std::string& b) {
  std::vector<std::string> parts;
  for (const TableRows& pass : rows.by({"pass"})) {
    const double times = speed(norms(pass, a, b), "median");
    if (times > 0) parts.push_back(fixed(times, 2) + " (" + pass.front().text("pass") + ")");
  }
  return join(parts, " and ");
}

// The one kernel of RMSNorm that is there: ours, or LibTorch's where that is faster (on a GPU).
std::string fused_norm(const TableRows& rows) {
  const double beside = speed(norms(rows, "libtorch", "flashstep"), "median");
  return !std::isnan(beside) && compare_measured(beside, 1) > 0 ? "libtorch" : "flashstep";
}

TableRows widest(const TableRows& rows) {
  return rows.where(
      {{"rows", rows.most("rows").text("rows")}, {"width", rows.most("width").text("width")}});
}

Facts norm_layer_norm(const Evidence& evidence) {
  const TableRows all = evidence.rows("norm"), rows = all.where({{"pass", "forward"}});
  const std::string fused = fused_norm(all);
  const auto formula = norms(rows, "naive", "layer_norm");
  if (formula.empty()) return {};
  return {{{"formula", norm_speeds(formula, "LayerNorm")},
           {"order", which_order(compare_measured(speed(formula, "median"), 1))},
           {"fused", fused},
           {"kernel", norm_speeds(norms(rows, fused, "layer_norm"), "LayerNorm")}},
          {},
          widest(rows)};
}

Facts norm_fused(const Evidence& evidence) {
  const TableRows rows = evidence.rows("norm");
  const std::string fused = fused_norm(rows), gains = by_pass(rows, fused, "naive");
  if (gains.empty()) return {};
  const double times = speed(norms(rows, fused, "naive"), "median");
  return {{{"fused", fused},
           {"gains", gains},
           {"limit", span_of(rows.where({{"implementation", fused}}).numbers("of limit"), 0)},
           {"pays", which(compare_measured(times, 1) > 0)}},
          {},
          widest(rows)};
}

Facts norm_compiled(const Evidence& evidence) {
  const TableRows rows = evidence.rows("norm");
  const auto beside = norms(rows, "compiled", fused_norm(rows));
  return {{{"gains", by_pass(rows, "compiled", "naive")},
           {"kernel", norm_speeds(beside, "the kernel that was written")},
           {"order", which_order(compare_measured(speed(beside, "median"), 1))}},
          {},
          widest(rows)};
}

// ---- The tokenizer, and limits

Facts tokenizer_answer(const Evidence& evidence) {
  const TableRows rows = evidence.rows("tokenizer");
  if (rows.empty()) return {};
  std::vector<std::string> parts;
  for (const TableRows& work : rows.by({"work"})) {
    const std::string times = span_of(work.numbers("ratio"), 1);
    if (!times.empty()) parts.push_back(str(work.front().text("work"), " ", times, " times"));
  }
  return {{{"compared", which(!parts.empty())}, {"times", join(parts)}},
          {{"", rows.most("ours")}},
          rows};
}

Facts limits_answer(const Evidence& evidence) {
  const TableRows rows = evidence.rows("limits");
  const bool gpu = rows.first({{"device", "cuda"}}).table != nullptr;
  const TableRows own = rows.where({{"device", gpu ? "cuda" : "cpu"}});
  std::vector<std::string> parts;
  for (const TableRow& row : own) {
    const bool tera = row.text("unit") == "GFLOP/s" && row.number("measured") >= 1000;
    parts.push_back(say("{limit} {rate} {unit}[ ({share|%})]", row,
                        {{"rate", three_digits(row.number("measured") / (tera ? 1000 : 1))},
                         {"unit", tera ? "TFLOP/s" : row.text("unit")}}));
  }
  const Columns notes = rows.empty() ? Columns() : rows.front().table->notes;
  const bool busy = std::ranges::any_of(notes, [&](const std::string& note) {
    // Behind the devices that it is about, where it is not about all.
    const size_t at = note.find("Other programs were running");
    return at == 0 || note.substr(0, at == std::string::npos ? 0 : at).find(gpu ? "cuda" : "cpu") !=
                          std::string::npos;
  });
  return {{{"gpu", which(gpu)},
           {"busy", busy ? which(true) : ""},
           {"sheet", which(!own.numbers("share").empty())},
           {"limits", join(parts)}},
          {},
          rows};
}

}  // namespace

Answers kernel_answers() {
  return {{"attention_memory", attention_memory},
          {"attention_compiled", attention_compiled},
          {"attention_forward_right", rightness({"forward"}, "the output")},
          {"attention_backward_right", rightness({"backward", "both"}, "a gradient")},
          {"attention_speed", attention_speed},
          {"attention_leaderboard", attention_leaderboard},
          {"norm_layer_norm", norm_layer_norm},
          {"norm_fused", norm_fused},
          {"norm_compiled", norm_compiled},
          {"tokenizer", tokenizer_answer},
          {"limits", limits_answer}};
}

}  // namespace flashstep::tools
