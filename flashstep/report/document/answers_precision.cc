// Answers about mixed precision.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/combine.h"
#include "flashstep/report/precision.h"

namespace flashstep::report {
namespace {

Finding sums_finding(const Evidence& evidence) {
  const TableRows rows = evidence.rows(
      "precision", {"sum + addend", "result", "error", "from the addend", "from the sum"});
  const auto sum = [&](const char* dtypes) { return rows.first({{"sum + addend", dtypes}}); };
  const TableRow half = sum("float16 + float16"), mixed = sum("float32 + float16"),
                 cast = sum("float32 + float16 cast to float32");
  if (!half || !mixed || !cast) return {};
  const double of_half = std::abs(half.number("error")), of_mixed = std::abs(mixed.number("error"));
  const bool by_sum =
      std::abs(half.number("from the sum")) > std::abs(half.number("from the addend"));
  return {
      .sentences =
          {str("A thousand additions of 0.01 in float16 give ", half.text("result"), ", ",
               three_digits(of_half), " % off, mostly by ",
               by_sum ? "the sum's own rounding" : "rounding the addend once", "."),
           str("With the sum in float32 it is ", three_digits(of_mixed), " %: ",
               of_mixed < of_half ? "the sum must be kept in float32, whatever is added."
                                  : "no better here."),
           mixed.number("result") == cast.number("result")
               ? "Casting the addend first changes nothing: the addition is done in float32."
               : "Casting the addend first changes the result."},
      .table = list(rows, {"sum + addend", "result", "error", "from the addend", "from the sum"})};
}

Finding dtypes_finding(const Evidence& evidence) {
  const TableRows rows = evidence.rows("precision", {"tensor", "CPU, float16", "CPU, bfloat16"});
  if (rows.empty()) return {};
  const bool gpu = rows.has("CUDA, float16");
  const std::string column = gpu ? "CUDA, float16" : "CPU, float16";
  std::vector<std::string> parts;
  for (const TableRows& same : rows.by({column}))
    parts.push_back(join(same.distinct("tensor")) + ": " + same.front().text(column));
  Finding finding = {.sentences = {str("Under autocast to float16 on the ", gpu ? "GPU" : "CPU",
                                       " the tensors have these dtypes: ", join(parts, "; "), ".")},
                     .table = list(rows, {"tensor", "CUDA, float16", "CUDA, bfloat16",
                                          "CPU, float16", "CPU, bfloat16"})};
  const TableRows different = rows.if_(
      [](const TableRow& row) { return row.text("CPU, float16") != row.text("CUDA, float16"); });
  finding.sentences.push_back(
      !gpu                ? "A GPU's rules were not observed here."
      : different.empty() ? "CPU and GPU have the same rules for all of them."
                          : "CPU and GPU differ in " + join(different.distinct("tensor")) + ".");
  return finding;
}

// Steps of LayerNorm that err far more in a dtype ("fp16") than rounding the result does, with one
// of the inputs (the columns "fp16 sd 300"): those that overflow, and those that lose digits.
struct Suffering {
  bool known = false;
  std::vector<std::string> overflow, inexact;
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
    if (overflows) found.overflow.push_back(step);
    if (errs && !overflows) found.inexact.push_back(step);
  }
  return found;
}

std::string suffering_words(const std::string& dtype, const Suffering& suffering) {
  std::vector<std::string> parts;
  if (!suffering.overflow.empty()) parts.push_back(join(suffering.overflow, "; ") + " overflow");
  if (!suffering.inexact.empty()) parts.push_back(join(suffering.inexact, "; ") + " lose digits");
  return "In " + dtype + ": " + (parts.empty() ? "no step suffers" : join(parts, ", and ")) + ".";
}

Finding norms_finding(const Evidence& evidence) {
  const TableRows rows = evidence.rows("precision", {"norm", "in 16 bits"});
  const Suffering half = suffering_in(rows, "fp16"), brain = suffering_in(rows, "bf16");
  if (!half.known || !brain.known) return {};
  const bool better = !half.overflow.empty() && brain.overflow.empty();
  return {.sentences = {suffering_words("float16", half), suffering_words("bfloat16", brain),
                        str(better ? "bfloat16 has float32's range, so that nothing overflows"
                                   : "bfloat16 does not behave better in range here",
                            brain.inexact.empty() && brain.overflow.empty()
                                ? ", and needs no special care."
                                : ", but its eight bits spoil sums and differences: they stay in "
                                  "float32 with it too.")},
          .table = list(rows.where({{"norm", "LayerNorm"}}),
                        {"in 16 bits", "fp16 sd 1", "bf16 sd 1", "fp16 sd 300", "bf16 sd 300",
                         "fp16 mean 100", "bf16 mean 100"})};
}

Finding sizes_finding(const Evidence& evidence) {
  const TableRows rows =
      evidence
          .rows("precision", {"model", "fp32 forward", "bf16 forward", "gain forward",
                              "gain backward", "loss error", "gradient error"})
          .with({"gain forward", "gain backward"});
  if (rows.empty()) return {};
  const std::string sizes = rows.size() == 1 ? " (" + rows.back().text("model") + ")"
                                             : " (" + rows.front().text("model") + " to " +
                                                   rows.back().text("model") + ")";
  Finding finding;
  for (const char* pass : {"forward", "backward"}) {
    finding.sentences.push_back(
        str(pass == std::string("forward") ? "bf16's gain over fp32" : "That of the backward pass",
            pass == std::string("forward") ? " in the forward pass " : " ",
            rows.size() == 1 ? "is " + fixed(rows.back().number(str("gain ", pass)), 2)
                             : trend(rows.numbers(str("gain ", pass)), 2),
            " times", sizes, "."));
  }
  finding.sentences.push_back(str("The gradient differs by at most ",
                                  percent(rows.most("gradient error").number("gradient error"), 1),
                                  " of its norm."));
  finding.table = list(rows, {"model", "fp32 forward", "fp32 backward", "bf16 forward",
                              "bf16 backward", "gain forward", "gain backward", "gradient error"});
  finding.picture = {"precision_sizes_gain"};
  return finding;
}

}  // namespace

void add_precision_answers(Answers& answers) {
  answers["precision_sums"] = sums_finding;
  answers["precision_dtypes"] = dtypes_finding;
  answers["precision_norms"] = norms_finding;
  answers["precision_sizes"] = sizes_finding;
}

}  // namespace flashstep::report
