// Answers about norms by themselves, and their part of a model.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kNormColumns = {"rows",       "width",  "dtype",   "pass",
                                               "contestant", "median", "of limit"};
constexpr double kNormTie = 1.02;  // speeds within 2 % are equal

// Of the row's case, by another contestant; NaN if that was not measured.
double norm_median(const TableView& table, size_t row, const std::string& contestant) {
  const auto other = table.first({{"rows", table.text(row, "rows")},
                                  {"width", table.text(row, "width")},
                                  {"dtype", table.text(row, "dtype")},
                                  {"pass", table.text(row, "pass")},
                                  {"contestant", contestant}});
  return other ? table.number(*other, "median") : std::nan("");
}

// How many times as fast as `b` `a` is, in each case of the pass ("": of all) that has both.
std::vector<double> norm_ratios(const TableView& table, const std::string& a, const std::string& b,
                                const std::string& pass = "") {
  std::vector<double> ratios;
  for (const size_t row : table.where({{"contestant", a}})) {
    if (!pass.empty() && table.text(row, "pass") != pass) continue;
    const double ratio = norm_median(table, row, b) / table.number(row, "median");
    if (!std::isnan(ratio)) ratios.push_back(ratio);
  }
  return ratios;
}

// "fused is 2.10 times as fast as b (geometric mean of 4 cases)"; empty without cases.
std::string norm_speed(const TableView& table, const std::string& a, const std::string& a_words,
                       const std::string& b, const std::string& b_words, const std::string& pass) {
  const auto ratios = norm_ratios(table, a, b, pass);
  if (ratios.empty()) return "";
  return str(pass, ": ", a_words, " is ", speed_words(measure::geometric_mean(ratios)), " ",
             b_words, " (geometric mean of ", count_of(ratios.size(), "case"), ").");
}

void add_norm_speeds(const TableView& table, const std::string& a, const std::string& a_words,
                     const std::string& b, const std::string& b_words, Sentences& sentences) {
  for (const std::string& pass : table.distinct("pass")) {
    const std::string sentence = norm_speed(table, a, a_words, b, b_words, pass);
    if (!sentence.empty()) sentences.push_back(sentence);
  }
}

// The one kernel of RMSNorm that is there: ours, or LibTorch's where that is faster (on a GPU).
std::string fused_norm(const TableView& table) {
  const auto ratios = norm_ratios(table, "libtorch", "flashstep");
  return !ratios.empty() && measure::geometric_mean(ratios) > kNormTie ? "libtorch" : "flashstep";
}

Sentences answer_layer_norm(const Evidence& evidence) {
  const TableView table = evidence.table("norm", kNormColumns);
  Sentences sentences;
  for (const size_t row : table.where({{"contestant", "naive"}, {"pass", "forward"}})) {
    const double formula = table.number(row, "median"),
                 layer = norm_median(table, row, "layer_norm");
    if (std::isnan(formula) || std::isnan(layer)) continue;
    sentences.push_back(str(table.text(row, "rows"), " rows of ", table.text(row, "width"), ", ",
                            table.text(row, "dtype"), ", forward: LayerNorm ", milliseconds(layer),
                            ", RMSNorm by its formula ", milliseconds(formula), "."));
  }
  const auto ratios = norm_ratios(table, "naive", "layer_norm", "forward");
  if (ratios.empty()) return {};
  const double formula = measure::geometric_mean(ratios);
  sentences.push_back(
      formula * kNormTie < 1
          ? "RMSNorm computes less, and by its formula it is slower all the same: each of its "
            "operations reads and writes the whole tensor, LayerNorm's kernel does so once."
      : formula > kNormTie ? "RMSNorm is faster even by its formula, operation by operation."
                           : "RMSNorm by its formula and LayerNorm take the same time.");
  const std::string fused = fused_norm(table);
  const std::string kernel =
      norm_speed(table, fused, "the fastest kernel of RMSNorm (" + fused + ")", "layer_norm",
                 "LayerNorm's", "forward");
  if (!kernel.empty()) sentences.push_back("Kernel beside kernel, " + kernel);
  return sentences;
}

Sentences answer_fused_norm(const Evidence& evidence) {
  const TableView table = evidence.table("norm", kNormColumns);
  Sentences sentences;
  add_norm_speeds(table, "flashstep", "our rms_norm", "naive", "the formula", sentences);
  add_norm_speeds(table, "libtorch", "LibTorch's rms_norm", "naive", "the formula", sentences);
  const std::string fused = fused_norm(table);
  const auto ratios = norm_ratios(table, fused, "naive");
  if (ratios.empty()) return {};
  std::vector<double> of_limit;
  for (const size_t row : table.where({{"contestant", fused}})) {
    const double share = table.number(row, "of limit");
    if (!std::isnan(share)) of_limit.push_back(share);
  }
  const auto [least, most] = std::minmax_element(of_limit.begin(), of_limit.end());
  sentences.push_back(str("The faster of the two (", fused, ") reaches ", fixed(*least, 0), " to ",
                          fixed(*most, 0), " % of the limit of memory."));
  sentences.push_back(measure::geometric_mean(ratios) > kNormTie
                          ? "Fusing pays: what lies between the operations no longer passes "
                            "through memory."
                          : "Fusing does not pay here.");
  return sentences;
}

Sentences answer_compiled_norm(const Evidence& evidence) {
  const TableView table = evidence.table("norm", kNormColumns);
  Sentences sentences;
  add_norm_speeds(table, "compiled", "the formula through torch.compile", "naive", "without it",
                  sentences);
  if (sentences.empty()) return {};
  const std::string fused = fused_norm(table);
  const auto ratios = norm_ratios(table, "compiled", fused);
  if (!ratios.empty()) {
    const double mean = measure::geometric_mean(ratios);
    sentences.push_back(
        str("It is ", speed_words(mean), " the kernel that was written (", fused, "): ",
            mean * kNormTie < 1 ? "writing one pays." : "for this one needs no kernel by hand."));
  }
  return sentences;
}

// Milliseconds of the norms' ranges, forward and backward, and of all ranges (of those that lie in
// no other).
struct NormShare {
  double norms = 0, all = 0;
};
NormShare norm_share(const TableView& table, const TableView::Wanted& profiled) {
  NormShare share;
  for (const size_t row : table.where(profiled)) {
    const std::string path = table.text(row, "range");
    const double time = std::fmax(table.number(row, "forward"), 0) +  // 0 where there is none
                        std::fmax(table.number(row, "backward"), 0);
    const bool is_outermost = path.find(" > ") == std::string::npos;
    if (is_outermost) share.all += time;
    if (path == "norm" || path.ends_with(" > norm")) share.norms += time;
  }
  return share;
}

Sentences answer_norms_in_model(const Evidence& evidence) {
  const TableView table = evidence.table(
      "profile", {"model", "context", "precision", "attention", "range", "forward", "backward"});
  Sentences sentences;
  double most = 0;
  for (const std::string& model : table.distinct("model")) {
    for (const std::string& precision : table.distinct("precision")) {
      const NormShare times =
          norm_share(table, {{"model", model}, {"precision", precision}, {"attention", "auto"}});
      const double share = times.norms / times.all;
      if (!(share > 0)) continue;
      most = std::fmax(most, share);
      sentences.push_back(
          str(model, ", ", precision, ": norms take ", percent(share, 1),
              " of the forward and backward pass, which norms that took no time would make ",
              fixed(1 / (1 - share), 2), " times as fast at most."));
    }
  }
  if (sentences.empty()) return {};
  constexpr double kSmallPart = 0.05;
  sentences.push_back(most > kSmallPart ? "What is gained by themselves is seen in the model."
                                        : "However fast they are by themselves, the model hardly "
                                          "sees it: nearly all of its time is elsewhere.");
  return sentences;
}

}  // namespace

void add_norm_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep bench norm`";
  const std::vector<Question> all = {
      {"rmsnorm (a)", "2024", "norm", "RMSNorm beside LayerNorm: which is faster, and why?", needs,
       answer_layer_norm},
      {"rmsnorm (b)", "2024", "norm",
       "What does a fused kernel of RMSNorm change, forward and with the backward pass?", needs,
       answer_fused_norm},
      {"rmsnorm (c)", "2024", "norm",
       "RMSNorm through torch.compile, beside the formula and the kernel?",
       "Python's torch and the compiler that it calls (`flashstep bench norm`)",
       answer_compiled_norm},
      {"rmsnorm (d)", "2024", "norm", "What does a faster norm change in the whole model?",
       "`flashstep profile`", answer_norms_in_model, "profile"},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
