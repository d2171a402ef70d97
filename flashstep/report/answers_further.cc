// Answers beyond the handouts: what other rooms of the program are measured for.
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

Facts matrix_answer(const Evidence& evidence) {
  const TableRows rows = evidence
                             .rows("matrix", {"attention", "wrapper", "ranks", "step", "tokens",
                                              "speed-up", "peak memory"})
                             .with({"tokens"});
  return {{{"losses", span_of(rows.numbers("validation loss"), 3)}},
          {{"", rows.most("tokens")}, {"lean", rows.least("peak memory")}},
          rows};
}

Facts tokenizer_answer(const Evidence& evidence) {
  const auto tables = evidence.tables("tokenizer", {});
  if (tables.empty()) return {};
  const TableRows& rows = tables.front();
  evidence.use(rows);
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
  const TableRows rows = evidence.rows("limits", {"device", "limit", "measured", "unit"});
  const bool gpu = rows.first({{"device", "cuda"}}).table != nullptr;
  const TableRows own = rows.where({{"device", gpu ? "cuda" : "cpu"}});
  std::vector<std::string> parts;
  for (const TableRow& row : own) {
    const bool tera = row.text("unit") == "GFLOP/s" && row.number("measured") >= 1000;
    parts.push_back(say("{limit} {rate} {unit}[ ({share|%})]", row, {},
                        {{"rate", three_digits(row.number("measured") / (tera ? 1000 : 1))},
                         {"unit", tera ? "TFLOP/s" : row.text("unit")}}));
  }
  return {{{"gpu", which(gpu)},
           {"sheet", which(!own.numbers("share").empty())},
           {"limits", join(parts)}},
          {},
          rows};
}

}  // namespace

void add_further_answers(Answers& answers) {
  answers["limits"] = limits_answer;
  answers["matrix"] = matrix_answer;
  answers["tokenizer"] = tokenizer_answer;
}

}  // namespace flashstep::tools
