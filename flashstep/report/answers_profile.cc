// Answers about where the time of a step goes.
#include <algorithm>
#include <cmath>
#include <regex>

#include "flashstep/base/text.h"
#include "flashstep/profile/profile.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

const Columns kProfiled = {"model", "context", "precision", "attention", "mode"};
constexpr double kNotable = 0.03;  // of a pass

// The rows that stand for all: of the last model at the last context, with `auto` where it is.
TableRows typical(const TableRows& rows, const std::string& attention = "auto") {
  const TableRows wanted = rows.where({{"attention", attention}});
  return wanted.empty() ? rows.by(kProfiled).back() : wanted.by(kProfiled).back();
}

// Time in which no kernel runs, or on a CPU no operator.
bool is_waiting(const TableRow& row) {
  return row.text("class") == "idle" || row.text("class") == "host";
}

// A fused kernel of attention holds matrix products too: without it naive attention, where they are
// kernels of their own, could not be compared with it.
const Columns kHoldProducts = {"matmul", "attention"};

// A kernel as people call it: `sm80_xmma_gemm_f32f32_..._tilesize64x64x8_...` by its head and its
// tiles; what has no name but CUTLASS's as what it does.
std::string kernel_words(const TableRow& row) {
  static const std::regex tiled("([^_]*_[^_]*_[^_]*)_.*?tilesize([^_]*).*");
  const std::string name = row.text("kernel");
  if (name.starts_with("Kernel2")) return "a CUTLASS kernel (" + row.text("class") + ")";
  if (std::smatch found; std::regex_match(name, found, tiled))
    return str("`", found.str(1), "` with tiles of ", found.str(2));
  constexpr size_t kLongest = 48;
  return "`" + (name.size() > kLongest ? name.substr(0, kLongest) + "..." : name) + "`";
}

Facts profile_timer(const Evidence& evidence) {
  const TableRows rows = evidence.rows("timer").where({{"pass", "inference, forward"}});
  if (rows.empty()) return {};
  const TableRow shown = typical(rows).back();
  Tally tally;
  for (const TableRow& row : rows) tally.add(row.number("kernels"), row.number("timer"));
  const std::string shortest = rows.least("context").text("context"),
                    longest = rows.most("context").text("context");
  return {{{"change", change_words(shown.number("timer"), shown.number("kernels"), "less", "more")},
           {"tally", tally.words("shorter", "the same within 2 %", "longer")},
           {"order", tally.less() > 0   ? "0"
                     : tally.more() > 0 ? "2"
                                        : "1"}},
          {{"", shown},
           {"least", rows.least("kernels / timer")},
           {"most", rows.most("kernels / timer")}},
          rows.like(shown, {"attention"}).if_([&](const TableRow& row) {
            return row.text("context") == shortest || row.text("context") == longest;
          })};
}

Facts profile_kernel(const Evidence& evidence) {
  const TableRows rows = evidence.rows("kernels");
  size_t cases = 0, same = 0, products = 0;
  for (const TableRows& profiled : rows.by(kProfiled)) {
    const TableRow forward = profiled.most("forward"), all = profiled.most("in all");
    if (!forward || !all) continue;
    ++cases;
    same += forward.index == all.index;
    products += contains(kHoldProducts, forward.text("class")) &&
                contains(kHoldProducts, all.text("class"));
  }
  if (cases == 0) return {};
  const TableRows shown = typical(rows.with({"in all"}));
  const TableRow forward = shown.most("forward"), all = shown.most("in all");
  return {{{"kernel", kernel_words(forward)},
           {"same", which(forward.index == all.index)},
           {"other", kernel_words(all)},
           {"alike", str(same)},
           {"cases", count_of(cases, "case")},
           {"products", str(products)}},
          {{"", forward}, {"all", all}}};
}

Facts profile_others(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("classes").where({{"work", "inference"}}).if_([](const TableRow& row) {
        return !is_waiting(row);
      });
  Facts facts;
  for (const char* attention : {"naive", "auto"}) {
    const TableRows shown = rows.where({{"attention", attention}});
    if (shown.empty()) continue;
    const TableRows told = typical(shown, attention);
    const double all = told.sum("time");
    if (facts.shown.empty()) facts.shown = told;
    std::vector<std::string> parts;
    for (const TableRow& row : told) {
      const double share = row.number("time") / all;
      if (row.text("class") == "matmul" || !(share >= kNotable)) continue;
      parts.push_back(row.text("class") + " " + percent(share));
    }
    facts.cases.push_back(
        {{{"any", which(!parts.empty())}, {"classes", join(parts)}}, {{"", told.front()}}});
  }
  return facts;
}

// Of these classes in the time in kernels, or in all time, of one column of shares.
double share_of(const TableRows& rows, const std::string& column, const Columns& classes,
                bool of_all = false) {
  double part = 0, whole = 0;
  for (const TableRow& row : rows) {
    if (is_waiting(row) && !of_all) continue;
    const double share = std::fmax(row.number(column), 0);
    whole += share;
    if (contains(classes, row.text("class"))) part += share;
  }
  return part / whole;
}

Facts profile_shares(const Evidence& evidence) {
  const TableRows rows = evidence.rows("shares");
  Tally tally;
  for (const TableRows& profiled : rows.by(kProfiled)) {
    const double before = share_of(profiled, "inference share", kHoldProducts),
                 after = share_of(profiled, "step share", kHoldProducts);
    if (before > 0 && after > 0) tally.add(after, before);
  }
  if (tally.cases() == 0) return {};
  const TableRows shown = typical(rows);
  const auto share = [&](const char* column, const Columns& classes) {
    return percent(share_of(shown, column, classes));
  };
  Facts facts = {{{"before", share("inference share", {"matmul"})},
                  {"after", share("step share", {"matmul"})},
                  {"tally", tally.words("falls", "stays within 2 % of itself", "rises")}},
                 {{"", shown.front()}},
                 shown};
  facts.picture = {"profile_shares_" + file_name(shown.front().text("model")),
                   shown.front().text("attention")};
  // The table's shares are of all time.
  const double waiting = share_of(shown, "step share", {"idle", "host"}, /*of_all=*/true);
  if (waiting > kNotable) {
    const auto of_all = [&](const char* column) {
      return percent(share_of(shown, column, {"matmul"}, /*of_all=*/true));
    };
    facts.words["waiting"] = percent(waiting);
    facts.words["of all before"] = of_all("inference share");
    facts.words["of all after"] = of_all("step share");
  }
  if (shown.first({{"class", "attention"}})) {
    facts.words["both before"] = share("inference share", kHoldProducts);
    facts.words["both after"] = share("step share", kHoldProducts);
  }
  return facts;
}

Facts profile_softmax(const Evidence& evidence) {
  const TableRows rows = evidence.rows("parts").where({{"pass", "forward"}});
  const auto both = pairs(rows, "part", "softmax", "matrix products", kProfiled);
  const TableRows known = rows.with({"work"});
  if (both.empty() || known.empty()) return {};
  const TableRow shown = known.by(kProfiled).back().front();
  const TableRows profiled = rows.like(shown, kProfiled);
  return {{{"slower", span_of(ratios(both, "rate"), 0)}},
          {{"", profiled.first({{"part", "softmax"}})},
           {"products", profiled.first({{"part", "matrix products"}})},
           {"scale", profiled.first({{"part", "scale and mask"}})}},
          profiled};
}

Facts profile_passes(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("kernels").if_([](const TableRow& row) { return !is_waiting(row); });
  if (rows.empty()) return {};
  const TableRows shown = typical(rows);
  std::vector<std::string> tops;
  for (const char* pass : {"forward", "backward", "optimizer"}) {
    if (const TableRow top = shown.most(pass))
      tops.push_back(str(pass, " ", kernel_words(top), " (", milliseconds(top.number(pass)), ")"));
  }
  return {.words = {{"tops", join(tops)}},
          .rows = {{"", shown.front()}},
          .picture = {"profile_flame_" + file_name(shown.front().text("model")),
                      shown.front().text("attention")}};
}

// Of the ranges with this innermost name in these passes. A range holds what lies in it: only the
// outermost ones add up to the whole.
double share_of_range(const TableRows& rows, const std::string& name, const Columns& passes) {
  double part = 0, all = 0;
  for (const TableRow& row : rows) {
    const std::string path = row.text("range");
    double time = 0;
    for (const std::string& pass : passes) time += std::fmax(row.number(pass), 0);
    if (path.find(" > ") == std::string::npos) all += time;
    if (path == name || path.ends_with(" > " + name)) part += time;
  }
  return part / all;
}

Facts profile_ranges(const Evidence& evidence) {
  const TableRows rows = evidence.rows("ranges");
  Facts facts = {.picture = {"flame_inference_" + file_name(rows.back().text("model"))}};
  for (const char* attention : {"naive", "auto"}) {
    const TableRows cases = rows.where({{"attention", attention}});
    if (cases.empty()) continue;
    const TableRows shown = typical(cases, attention);
    const double norms = share_of_range(shown, "norm", {"forward"}),
                 softmax = share_of_range(shown, "softmax", {"forward"});
    if (!(norms > 0)) continue;
    facts.cases.push_back({{{"norms", percent(norms, 1)},
                            {"kernel", which(!(softmax > 0))},
                            {"softmax", percent(softmax, 1)},
                            {"order", which_order(compare_measured(softmax, norms))}},
                           {{"", shown.front()}}});
  }
  return facts;
}

Facts norm_in_model(const Evidence& evidence) {
  const Columns passes = {"forward", "backward"};
  const TableRows rows = evidence.rows("ranges of passes").where({{"attention", "auto"}});
  std::vector<double> percents;
  for (const TableRows& profiled : rows.by(kProfiled)) {
    const double share = share_of_range(profiled, "norm", passes);
    if (share > 0) percents.push_back(100 * share);
  }
  if (percents.empty()) return {};
  const double most = std::ranges::max(percents) / 100;
  return {{{"shares", span_of(percents, 1)}, {"most", fixed(1 / (1 - most), 2)}}};
}

}  // namespace

Answers profile_answers() {
  return {{"profile_timer", profile_timer},     {"profile_kernel", profile_kernel},
          {"profile_others", profile_others},   {"profile_shares", profile_shares},
          {"profile_softmax", profile_softmax}, {"profile_passes", profile_passes},
          {"profile_ranges", profile_ranges},   {"norm_in_model", norm_in_model}};
}

}  // namespace flashstep::tools
