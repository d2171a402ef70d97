// Answers about mixed precision.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/profile/precision.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

constexpr double kShaky = 1.1;  // p90 over p10 of a pass that waits for its launches

// "a, b and c"
std::string listed(Columns names) {
  if (names.size() < 2) return join(names);
  const std::string last = names.back();
  names.pop_back();
  return join(names) + " and " + last;
}

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
  Columns parts;
  for (const TableRows& same : rows.by({column}))
    parts.push_back(listed(same.distinct("tensor")) + " are " + same.front().text(column));
  const TableRows different = rows.if_(
      [](const TableRow& row) { return row.text("CPU, float16") != row.text("CUDA, float16"); });
  return {{{"gpu", which(gpu)},
           {"dtypes", join(parts, "; ")},
           {"rules", !gpu                ? "0"
                     : different.empty() ? "1"
                                         : "2"},
           {"different", listed(different.distinct("tensor"))}},
          {},
          rows};
}

// Steps of LayerNorm, however they are summed, that err far more in a dtype ("fp16") than rounding
// the result does, with one of the inputs (the columns "fp16 sd 300"): those that overflow, and
// those that lose digits.
struct Suffering {
  bool known = false;
  Columns overflow, inexact;
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
    const std::string name = step.substr(0, step.find(", summed"));
    Columns& those = overflows ? found.overflow : found.inexact;
    if ((errs || overflows) && !contains(those, name)) those.push_back(name);
  }
  std::erase_if(found.inexact, [&](const auto& name) { return contains(found.overflow, name); });
  return found;
}

std::string suffering_words(const Suffering& suffering) {
  std::vector<std::string> parts;
  if (!suffering.overflow.empty()) parts.push_back(listed(suffering.overflow) + " overflow");
  if (!suffering.inexact.empty())
    parts.push_back("digits are lost in " + listed(suffering.inexact));
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
  const auto gain = [](const TableRow& row) {
    const double full = row.number("fp32 forward") + row.number("fp32 backward"),
                 half = row.number("bf16 forward") + row.number("bf16 backward");
    return say("{gain} ({model})", row, {}, {{"gain", fixed(full / half, 2)}});
  };
  TableRow shakiest;
  double most = 0;
  for (const TableRow& row : evidence.rows("precision", {"model", "precision", "p10", "p90"})) {
    const double spread = row.number("p90") / row.number("p10");
    if (spread > kShaky && spread > most) shakiest = row, most = spread;
  }
  return {{{"case", subject_of(rows)},
           {"forward", extremes(rows, "gain forward", "", "model")},
           {"backward", extremes(rows, "gain backward", "", "model")},
           {"smallest", rows.size() > 1 ? gain(rows.front()) : ""},
           {"largest", gain(rows.back())},
           {"pass", shakiest.text("pass")},
           {"error", percent(rows.most("gradient error").number("gradient error"), 1)}},
          {{"vary", shakiest}},
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
