// Answers about norms by themselves, and their part of a model.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

const Columns kNormCase = {"rows", "width", "dtype", "pass"};

TableRows norm_rows(const Evidence& evidence) {
  return evidence.rows("norm",
                       {"rows", "width", "dtype", "pass", "contestant", "median", "of limit"});
}

std::vector<double> norm_ratios(const TableRows& rows, const std::string& a, const std::string& b) {
  return ratios(pairs(rows, {{"contestant", a}}, {{"contestant", b}}, kNormCase), "median");
}

double norm_speed(const TableRows& rows, const std::string& a, const std::string& b) {
  return measure::geometric_mean(norm_ratios(rows, a, b));
}

// "forward 2.1, forward and backward 1.8 times": how many times as fast a is.
std::string norm_speeds(const TableRows& rows, const std::string& a, const std::string& b) {
  std::vector<std::string> parts;
  for (const TableRows& pass : rows.by({"pass"})) {
    const double speed = norm_speed(pass, a, b);
    if (speed > 0) parts.push_back(fixed(speed, 2) + " (" + pass.front().text("pass") + ")");
  }
  return join(parts, " and ");
}

// The one kernel of RMSNorm that is there: ours, or LibTorch's where that is faster (on a GPU).
std::string fused_norm(const TableRows& rows) {
  return compare_measured(norm_speed(rows, "libtorch", "flashstep"), 1) > 0 &&
                 !norm_ratios(rows, "libtorch", "flashstep").empty()
             ? "libtorch"
             : "flashstep";
}

// Of the widest case.
measure::Table norm_table(const TableRows& rows) {
  return list(rows.where({{"rows", rows.most("rows").text("rows")},
                          {"width", rows.most("width").text("width")}}),
              {"rows", "width", "dtype", "pass", "contestant", "median", "of limit"});
}

Finding norm_layer_norm(const Evidence& evidence) {
  const TableRows all = norm_rows(evidence), rows = all.where({{"pass", "forward"}});
  const double formula = norm_speed(rows, "naive", "layer_norm");
  const std::string fused = fused_norm(all);
  if (!(formula > 0)) return {};
  const int order = compare_measured(formula, 1);
  Finding finding;
  finding.sentences = {
      str("Forward, RMSNorm by its formula is ",
          speeds(norm_ratios(rows, "naive", "layer_norm"), "LayerNorm"), ": ",
          order < 0   ? "it computes less, but each of its operations reads and writes the whole "
                        "tensor, and LayerNorm's kernel does so once."
          : order > 0 ? "it is faster even operation by operation."
                      : "less to compute does not show.")};
  if (norm_speed(rows, fused, "layer_norm") > 0) {
    finding.sentences.push_back(str("Kernel beside kernel RMSNorm (", fused, ") is ",
                                    speeds(norm_ratios(rows, fused, "layer_norm"), "LayerNorm"),
                                    "."));
  }
  finding.table = norm_table(rows);
  return finding;
}

Finding norm_fused(const Evidence& evidence) {
  const TableRows rows = norm_rows(evidence);
  const std::string fused = fused_norm(rows);
  const double speed = norm_speed(rows, fused, "naive");
  if (!(speed > 0)) return {};
  return {.sentences = {str("The fused kernel (", fused, ") is as many times as fast as the ",
                            "formula: ", norm_speeds(rows, fused, "naive"), "."),
                        str("It reaches ",
                            span_of(rows.where({{"contestant", fused}}).numbers("of limit"), 0),
                            " % of the limit of memory: ",
                            compare_measured(speed, 1) > 0
                                ? "what lies between the operations no longer passes through it."
                                : "fusing does not pay here.")},
          .table = norm_table(rows),
          .picture = {"norm_"}};
}

Finding norm_compiled(const Evidence& evidence) {
  const TableRows rows = norm_rows(evidence);
  const std::string gains = norm_speeds(rows, "compiled", "naive"), fused = fused_norm(rows);
  if (gains.empty()) return {};
  Finding finding = {
      .sentences = {str("Through torch.compile the formula is as many times as fast: ", gains,
                        ".")},
      .table = norm_table(rows)};
  const auto beside = norm_ratios(rows, "compiled", fused);
  if (!beside.empty()) {
    finding.sentences.push_back(str("It is ", speeds(beside, "the kernel that was written"), ": ",
                                    compare_measured(measure::geometric_mean(beside), 1) < 0
                                        ? "writing one pays."
                                        : "none needs to be written."));
  }
  return finding;
}

// Of the norms' ranges in all outermost ones, forward and backward.
double share_of_norms(const TableRows& rows) {
  double norms = 0, all = 0;
  for (const TableRow& row : rows) {
    const std::string path = row.text("range");
    const double time = std::fmax(row.number("forward"), 0) + std::fmax(row.number("backward"), 0);
    if (path.find(" > ") == std::string::npos) all += time;
    if (path == "norm" || path.ends_with(" > norm")) norms += time;
  }
  return norms / all;
}

Finding norm_in_model(const Evidence& evidence) {
  const TableRows rows = evidence
                             .rows("profile", {"model", "context", "precision", "attention",
                                               "range", "forward", "backward"})
                             .where({{"attention", "auto"}});
  std::vector<double> shares;
  for (const TableRows& profiled : rows.by({"model", "context", "precision"})) {
    const double share = share_of_norms(profiled);
    if (share > 0) shares.push_back(share);
  }
  if (shares.empty()) return {};
  const double most = *std::max_element(shares.begin(), shares.end());
  constexpr double kSmallPart = 0.05;
  std::vector<double> percents;
  for (const double share : shares) percents.push_back(100 * share);
  return {.sentences = {str("Norms take ", span_of(percents, 1),
                            " % of forward and backward, so that norms that took no time would "
                            "make the model at most ",
                            fixed(1 / (1 - most), 2), " times as fast."),
                        most > kSmallPart
                            ? "What is gained by themselves is seen in the model."
                            : "However fast they are by themselves, the model hardly sees it."}};
}

}  // namespace

void add_norm_answers(Answers& answers) {
  answers["norm_layer_norm"] = norm_layer_norm;
  answers["norm_fused"] = norm_fused;
  answers["norm_compiled"] = norm_compiled;
  answers["norm_in_model"] = norm_in_model;
}

}  // namespace flashstep::report
