// Answers about where the time of a step goes.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

const Columns kProfiled = {"model", "context", "precision", "attention", "mode"};
constexpr double kNotable = 0.03;  // of a pass

Columns profile_columns(const Columns& more) {
  Columns columns = {"model", "context", "precision", "attention"};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}

std::string profiled_case(const TableRow& row) {
  return str(row.text("model"), " at context ", row.text("context"), ", ", row.text("precision"),
             ", attention ", row.text("attention"));
}

// The rows that stand for all: of the last model at the last context, with `auto` where it is.
TableRows typical(const TableRows& rows, const std::string& attention = "auto") {
  const TableRows wanted = rows.where({{"attention", attention}});
  return wanted.empty() ? rows.by(kProfiled).back() : wanted.by(kProfiled).back();
}

// "64/256/2/4" as names of files have it.
std::string name_in_files(const TableRow& row) {
  std::string name = row.text("model");
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// Of the same case in another table.
TableRows same_case(const TableRows& rows, const TableRow& row) {
  Cells cells;
  for (const std::string& column : kProfiled) cells.emplace_back(column, row.text(column));
  return rows.where(cells);
}

// Time in which no kernel runs, or on a CPU no operator.
bool is_waiting(const TableRow& row) {
  return row.text("class") == "idle" || row.text("class") == "host";
}

// A fused kernel of attention holds matrix products too: without it naive attention, where they are
// kernels of their own, could not be compared with it.
bool holds_products(const TableRow& row) {
  return row.text("class") == "matmul" || row.text("class") == "attention";
}

// A kernel as people call it: `sm80_xmma_gemm_f32f32_..._tilesize64x64x8_...` by its head and its
// tiles; what has no name but CUTLASS's as what it does.
std::string kernel_words(const TableRow& row) {
  const std::string name = row.text("kernel"), tiles = "tilesize";
  if (name.rfind("Kernel2", 0) == 0) return "a CUTLASS kernel (" + row.text("class") + ")";
  const size_t at = name.find(tiles);
  if (at != std::string::npos) {
    const size_t begin = at + tiles.size();
    size_t head = 0;
    for (int words = 0; words < 3 && head != std::string::npos; ++words)
      head = name.find('_', head + 1);
    return str("`", name.substr(0, head), "` with tiles of ",
               name.substr(begin, name.find('_', begin) - begin));
  }
  constexpr size_t kLongest = 48;
  return "`" + (name.size() > kLongest ? name.substr(0, kLongest) + "..." : name) + "`";
}

Finding profile_timer(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("profile", profile_columns({"pass", "timer", "kernels", "kernels / timer"}))
          .with({"timer", "kernels"})
          .where({{"pass", "inference, forward"}});
  if (rows.empty()) return {};
  const TableRow least = rows.least("kernels / timer"), most = rows.most("kernels / timer");
  Tally tally;
  for (const TableRow& row : rows) tally.add(row.number("kernels"), row.number("timer"));
  const TableRow shown = typical(rows).back();
  Finding finding;
  finding.sentences = {
      str("The forward pass of ", profiled_case(shown), " takes ",
          milliseconds(shown.number("timer")), " by the timer and ",
          milliseconds(shown.number("kernels")), " in kernels: ",
          change_words(shown.number("timer"), shown.number("kernels"), "less", "more"), "."),
      str("Beside the timer's time the kernels' is ",
          tally.words("shorter", "the same within 2 %", "longer"), ", between ",
          percent(least.number("kernels / timer") / 100), " (", profiled_case(least), ") and ",
          percent(most.number("kernels / timer") / 100), ".")};
  if (tally.less() > 0)
    finding.sentences.emplace_back("Where it is shorter, the device waits for its next kernel.");
  else if (tally.more() > 0)
    finding.sentences.emplace_back(
        "Where it is longer, kernels run beside each other or the profiler slows them.");
  const std::string shortest = rows.least("context").text("context"),
                    longest = rows.most("context").text("context");
  finding.table =
      list(rows.where({{"attention", shown.text("attention")}}).if_([&](const TableRow& row) {
        return row.text("context") == shortest || row.text("context") == longest;
      }),
           {"model", "context", "precision", "timer", "kernels", "kernels / timer"});
  return finding;
}

TableRows kernel_rows(const Evidence& evidence) {
  return evidence.rows("profile", profile_columns({"kernel", "class", "forward", "forward calls",
                                                   "backward", "in all", "share"}));
}

Finding profile_kernel(const Evidence& evidence) {
  const TableRows rows = kernel_rows(evidence);
  size_t cases = 0, same = 0, products = 0;
  for (const TableRows& profiled : rows.by(kProfiled)) {
    const TableRow forward = profiled.most("forward"), all = profiled.most("in all");
    if (!forward || !all) continue;
    ++cases;
    same += forward.index == all.index;
    products += holds_products(forward) && holds_products(all);
  }
  if (cases == 0) return {};
  const TableRows shown = typical(rows.with({"in all"}));
  const TableRow forward = shown.most("forward"), all = shown.most("in all");
  return {.sentences = {
              str("In the forward pass of ", profiled_case(shown.front()), ", ",
                  kernel_words(forward), " takes most, ", milliseconds(forward.number("forward")),
                  " in ", forward.text("forward calls"), " calls; of the whole step ",
                  forward.index == all.index ? std::string("it is the same one")
                                             : "it is " + kernel_words(all),
                  " (", milliseconds(all.number("in all")), ")."),
              str("It is the same kernel for both in ", same, " of ", count_of(cases, "case"),
                  "; in ", products, " of them both are matrix products or attention.")}};
}

Finding profile_others(const Evidence& evidence) {
  const TableRows rows =
      evidence
          .rows("profile",
                profile_columns({"work", "class", "time", "limit", "limited by", "of limit"}))
          .where({{"work", "inference"}})
          .if_([](const TableRow& row) { return !is_waiting(row); });
  Finding finding;
  for (const char* attention : {"naive", "auto"}) {
    const TableRows shown = rows.where({{"attention", attention}});
    if (shown.empty()) continue;
    const TableRows profiled = typical(shown, attention);
    double all = 0;
    for (const TableRow& row : profiled) all += row.number("time");
    std::vector<std::string> parts;
    for (const TableRow& row : profiled) {
      const double share = row.number("time") / all;
      if (row.text("class") == "matmul" || !(share >= kNotable)) continue;
      parts.push_back(row.text("class") + " " + percent(share));
    }
    finding.sentences.push_back(
        str("Beside matrix products the forward pass of ", profiled_case(profiled.front()),
            parts.empty() ? " has nothing that takes 3 % of its kernels' time"
                          : " spends its kernels' time on " + join(parts),
            "."));
    finding.table = list(profiled, {"class", "time", "limit", "limited by", "of limit"});
  }
  return finding;
}

// Of matrix products in the time in kernels, in percent, and how long the GPU was idle.
struct ProductShare {
  double inference = 0, step = 0;
};
ProductShare product_share(const TableRows& rows) {
  double products[2] = {}, kernels[2] = {};
  for (const TableRow& row : rows) {
    if (is_waiting(row)) continue;
    const double shares[2] = {row.number("inference share"), row.number("step share")};
    for (int i : {0, 1}) {
      kernels[i] += std::fmax(shares[i], 0);
      if (holds_products(row)) products[i] += std::fmax(shares[i], 0);
    }
  }
  return {products[0] / kernels[0], products[1] / kernels[1]};
}

Finding profile_shares(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("profile", profile_columns({"class", "inference share", "step share"}));
  Tally tally;
  std::vector<double> before, after;
  for (const TableRows& profiled : rows.by(kProfiled)) {
    const ProductShare share = product_share(profiled);
    if (!(share.inference > 0) || !(share.step > 0)) continue;
    tally.add(share.step, share.inference);
    before.push_back(100 * share.inference);
    after.push_back(100 * share.step);
  }
  if (before.empty()) return {};
  const TableRows shown = typical(rows);
  const ProductShare share = product_share(shown);
  return {.sentences = {str("Matrix products and attention take ", percent(share.inference),
                            " of the time in kernels of inference and ", percent(share.step),
                            " of a training step's (", profiled_case(shown.front()), ")."),
                        str("From inference to training their share ",
                            tally.words("falls", "stays within 2 % of itself", "rises"), ", from ",
                            span_of(before, 0), " % to ", span_of(after, 0), " %.")},
          .table = list(shown,
                        {"class", "inference", "inference share", "step", "step share", "change"}),
          .picture = {"profile_shares"}};
}

Finding profile_softmax(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("profile", profile_columns({"pass", "part", "time", "work", "rate"}))
          .where({{"pass", "forward"}});
  std::vector<double> slower;
  for (const auto& [softmax, products] :
       pairs(rows, {{"part", "softmax"}}, {{"part", "matrix products"}}, kProfiled)) {
    const double ratio = products.number("rate") / softmax.number("rate");
    if (ratio > 0) slower.push_back(ratio);
  }
  if (slower.empty()) return {};
  const TableRows shown = rows.with({"work"}).by(kProfiled).back();
  const TableRows profiled = same_case(rows, shown.front());
  const TableRow softmax = profiled.first({{"part", "softmax"}}),
                 products = profiled.first({{"part", "matrix products"}}),
                 scale = profiled.first({{"part", "scale and mask"}});
  Finding finding;
  finding.sentences = {
      str("Softmax takes ", fixed(softmax.number("time") / products.number("time"), 2),
          " of the time of attention's matrix products for ",
          percent(softmax.number("work") / products.number("work"), 1), " of their FLOPs (",
          profiled_case(shown.front()), ")."),
      str("It takes ", span_of(slower, 0), " times the time a FLOP: it waits for memory.")};
  if (scale.number("time") > 0) {
    finding.sentences.push_back(
        str("Scale and mask take ", milliseconds(scale.number("time")), ", ",
            compare_measured(scale.number("time"), softmax.number("time")) > 0 ? "more" : "no more",
            " than softmax with ", milliseconds(softmax.number("time")), "."));
  }
  finding.table = list(profiled, {"part", "time", "share", "work", "share of work", "rate"});
  return finding;
}

Finding profile_passes(const Evidence& evidence) {
  const TableRows rows =
      kernel_rows(evidence).if_([](const TableRow& row) { return !is_waiting(row); });
  if (rows.empty()) return {};
  const TableRows shown = typical(rows);
  std::vector<std::string> parts;
  for (const char* pass : {"forward", "backward", "optimizer"}) {
    if (const TableRow top = shown.most(pass))
      parts.push_back(str(pass, " ", kernel_words(top), " (", milliseconds(top.number(pass)), ")"));
  }
  return {.sentences = {str("In a step of ", profiled_case(shown.front()), " most time takes, in ",
                            join(parts), ".")},
          .picture = {"profile_flame_" + name_in_files(shown.front()),
                      shown.front().text("attention")}};
}

// Of the ranges with this innermost name in the forward pass. A range holds what lies in it: only
// the outermost ones add up to the whole.
double share_of_range(const TableRows& rows, const std::string& name) {
  double part = 0, all = 0;
  for (const TableRow& row : rows) {
    const std::string path = row.text("range");
    const size_t last = path.rfind(" > ");
    const double time = std::fmax(row.number("forward"), 0);
    if (last == std::string::npos) all += time;
    if (path == name || (last != std::string::npos && path.substr(last + 3) == name)) part += time;
  }
  return part / all;
}

Finding profile_ranges(const Evidence& evidence) {
  const TableRows rows = evidence.rows("profile", profile_columns({"range", "forward", "share"}));
  if (rows.empty()) return {};
  Finding finding;
  for (const char* attention : {"naive", "auto"}) {
    const TableRows cases = rows.where({{"attention", attention}});
    if (cases.empty()) continue;
    const TableRows shown = typical(cases, attention);
    const double norms = share_of_range(shown, "norm"), softmax = share_of_range(shown, "softmax");
    if (!(norms > 0)) continue;
    std::string sentence = str("Norms take ", percent(norms, 1), " of the forward pass of ",
                               profiled_case(shown.front()));
    if (softmax > 0) {
      const int order = compare_measured(softmax, norms);
      sentence += str(", softmax with its mask ", percent(softmax, 1), ": ",
                      order > 0    ? "softmax is the larger part"
                      : order == 0 ? "both are as large"
                                   : "norms are the larger part");
    } else {
      sentence += "; softmax is inside the fused kernel";
    }
    finding.sentences.push_back(sentence + ".");
  }
  finding.picture = {"flame_inference_" + name_in_files(rows.back()), "naive"};
  return finding;
}

}  // namespace

void add_profile_answers(Answers& answers) {
  answers["profile_timer"] = profile_timer;
  answers["profile_kernel"] = profile_kernel;
  answers["profile_others"] = profile_others;
  answers["profile_shares"] = profile_shares;
  answers["profile_softmax"] = profile_softmax;
  answers["profile_passes"] = profile_passes;
  answers["profile_ranges"] = profile_ranges;
}

}  // namespace flashstep::report
