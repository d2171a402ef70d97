// Answers about norms by themselves.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

TableRows norm_rows(const Evidence& evidence) {
  return evidence.rows("norm",
                       {"rows", "width", "dtype", "pass", "implementation", "median", "of limit"});
}

std::vector<RowPair> norms(const TableRows& rows, const std::string& a, const std::string& b) {
  return pairs(rows, {{"implementation", a}}, {{"implementation", b}},
               {"rows", "width", "dtype", "pass"});
}

std::string norm_speeds(const std::vector<RowPair>& both, const std::string& b) {
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
  const TableRows all = norm_rows(evidence), rows = all.where({{"pass", "forward"}});
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
  const TableRows rows = norm_rows(evidence);
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
  const TableRows rows = norm_rows(evidence);
  const auto beside = norms(rows, "compiled", fused_norm(rows));
  return {{{"gains", by_pass(rows, "compiled", "naive")},
           {"kernel", norm_speeds(beside, "the kernel that was written")},
           {"order", which_order(compare_measured(speed(beside, "median"), 1))}},
          {},
          widest(rows)};
}

}  // namespace

void add_norm_answers(Answers& answers) {
  answers["norm_layer_norm"] = norm_layer_norm;
  answers["norm_fused"] = norm_fused;
  answers["norm_compiled"] = norm_compiled;
}

}  // namespace flashstep::tools
