// Answers beyond the handouts: what other rooms of the program are measured for.
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

Finding matrix_answer(const Evidence& evidence) {
  const TableRows rows = evidence
                             .rows("matrix", {"attention", "wrapper", "ranks", "step", "tokens",
                                              "speed-up", "peak memory"})
                             .with({"tokens"});
  const TableRow fastest = rows.most("tokens"), leanest = rows.least("peak memory");
  if (!fastest) return {};
  const auto name = [](const TableRow& row) {
    return str("attention `", row.text("attention"), "` and wrapper `", row.text("wrapper"), "`");
  };
  Finding finding = {.sentences = {str("Training is fastest with ", name(fastest), ": ",
                                       fastest.text("tokens"), " tokens/s.")},
                     .table = list(rows, {"attention", "wrapper", "ranks", "step", "tokens",
                                          "speed-up", "peak memory", "validation loss"}),
                     .picture = {"matrix_throughput"}};
  if (leanest)
    finding.sentences.push_back(str("It takes least memory with ", name(leanest), ": ",
                                    leanest.text("peak memory"), " GiB."));
  const std::vector<double> losses = rows.numbers("validation loss");
  if (!losses.empty())
    finding.sentences.push_back(str("Validation losses lie between ", span_of(losses, 3), "."));
  return finding;
}

Finding tokenizer_answer(const Evidence& evidence) {
  for (const TableRows& rows : evidence.tables("tokenizer", {})) {
    evidence.use(rows);
    Finding finding = {.table = list(rows, {"text", "work", "vocab_size", "threads", "size", "ours",
                                            "peer", "peer's rate", "ratio"})};
    std::vector<std::string> parts;
    for (const TableRows& work : rows.by({"work"})) {
      const std::vector<double> ratios = work.numbers("ratio");
      if (!ratios.empty())
        parts.push_back(str(work.front().text("work"), " ", span_of(ratios, 1), " times"));
    }
    const TableRow fastest = rows.most("ours");
    finding.sentences.push_back(
        parts.empty() ? str("Ours takes up to ", three_digits(fastest.number("ours")),
                            " MB/s; no other tokenizer was there to compare with.")
                      : str("Ours is as many times as fast as the others: ", join(parts), "."));
    return finding;
  }
  return {};
}

Finding limits_answer(const Evidence& evidence) {
  const TableRows rows = evidence.rows("limits", {"device", "limit", "measured", "unit"});
  if (rows.empty()) return {};
  const std::string device = rows.where({{"device", "cuda"}}).empty() ? "cpu" : "cuda";
  const TableRows own = rows.where({{"device", device}});
  std::vector<std::string> parts;
  for (const TableRow& row : own) {
    const double share = row.number("share");
    const bool tera = row.text("unit") == "GFLOP/s" && row.number("measured") >= 1000;
    parts.push_back(str(row.text("limit"), " ",
                        three_digits(row.number("measured") / (tera ? 1000 : 1)), " ",
                        tera ? "TFLOP/s" : row.text("unit"),
                        std::isnan(share) ? "" : " (" + percent(share / 100) + ")"));
  }
  const bool has_sheet = !own.numbers("share").empty();
  return {.sentences = {str("The ", device == "cuda" ? "GPU" : "processor", " reaches at most",
                            has_sheet ? " (share of its data sheet)" : "", ": ", join(parts), ".")},
          .table = list(rows, {"device", "limit", "measured", "unit", "data sheet", "share"})};
}

}  // namespace

void add_further_answers(Answers& answers) {
  answers["limits"] = limits_answer;
  answers["matrix"] = matrix_answer;
  answers["tokenizer"] = tokenizer_answer;
}

}  // namespace flashstep::report
