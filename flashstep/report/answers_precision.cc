// Answers about mixed precision.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/profile/precision.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

Facts sums_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows(
      "precision", {"sum + addend", "result", "error", "from the addend", "from the sum"});
  const auto sum = [&](const char* dtypes) { return rows.first({{"sum + addend", dtypes}}); };
  const TableRow half = sum("float16 + float16"), mixed = sum("float32 + float16"),
                 cast = sum("float32 + float16 cast to float32");
  if (!half || !mixed || !cast) return {};
  const double of_half = std::abs(half.number("error")), of_mixed = std::abs(mixed.number("error"));
  const bool by_sum =
      std::abs(half.number("from the sum")) > std::abs(half.number("from the addend"));
  return {{{"off", three_digits(of_half)},
           {"by", which(by_sum)},
           {"mixed off", three_digits(of_mixed)},
           {"better", which(of_mixed < of_half)},
           {"same", which(mixed.number("result") == cast.number("result"))}},
          {{"", half}},
          rows};
}

Facts dtypes_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows("precision", {"tensor", "CPU, float16", "CPU, bfloat16"});
  if (rows.empty()) return {};
  const bool gpu = rows.has("CUDA, float16");
  const std::string column = gpu ? "CUDA, float16" : "CPU, float16";
  std::vector<std::string> parts;
  for (const TableRows& same : rows.by({column}))
    parts.push_back(join(same.distinct("tensor")) + ": " + same.front().text(column));
  const TableRows different = rows.if_(
      [](const TableRow& row) { return row.text("CPU, float16") != row.text("CUDA, float16"); });
  return {{{"gpu", which(gpu)},
           {"dtypes", join(parts, "; ")},
           {"rules", !gpu                ? "0"
                     : different.empty() ? "1"
                                         : "2"},
           {"different", join(different.distinct("tensor"))}},
          {},
          rows};
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

std::string suffering_words(const Suffering& suffering) {
  std::vector<std::string> parts;
  if (!suffering.overflow.empty()) parts.push_back(join(suffering.overflow, "; ") + " overflow");
  if (!suffering.inexact.empty()) parts.push_back(join(suffering.inexact, "; ") + " lose digits");
  return parts.empty() ? "no step suffers" : join(parts, ", and ");
}

Facts norms_facts(const Evidence& evidence) {
  const TableRows rows = evidence.rows("precision", {"norm", "in 16 bits"});
  const Suffering half = suffering_in(rows, "fp16"), brain = suffering_in(rows, "bf16");
  if (!half.known || !brain.known) return {};
  return {{{"float16", suffering_words(half)},
           {"bfloat16", suffering_words(brain)},
           {"better", which(!half.overflow.empty() && brain.overflow.empty())},
           {"care", which(!brain.inexact.empty() || !brain.overflow.empty())}},
          {},
          rows.where({{"norm", "LayerNorm"}})};
}

Facts sizes_facts(const Evidence& evidence) {
  const TableRows rows =
      evidence
          .rows("precision", {"model", "fp32 forward", "bf16 forward", "gain forward",
                              "gain backward", "loss error", "gradient error"})
          .with({"gain forward", "gain backward"});
  if (rows.empty()) return {};
  return {{{"sizes", rows.size() == 1 ? rows.back().text("model")
                                      : say("{model} to {b.model}", rows.front(), rows.back())},
           {"forward", trend(rows.numbers("gain forward"), 2)},
           {"backward", trend(rows.numbers("gain backward"), 2)},
           {"error", percent(rows.most("gradient error").number("gradient error"), 1)}},
          {},
          rows};
}

}  // namespace

void add_precision_answers(Answers& answers) {
  answers["precision_sums"] = sums_facts;
  answers["precision_dtypes"] = dtypes_facts;
  answers["precision_norms"] = norms_facts;
  answers["precision_sizes"] = sizes_facts;
}

}  // namespace flashstep::tools
