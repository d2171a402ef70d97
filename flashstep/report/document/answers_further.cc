// Answers beyond the handouts: what other rooms of the program are measured for.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

Sentences answer_matrix(const Evidence& evidence) {
  const TableView table = evidence.table(
      "matrix", {"attention", "wrapper", "ranks", "step", "tokens", "speed-up", "peak memory"});
  std::optional<size_t> fastest, leanest;
  double low = INFINITY, high = -INFINITY;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double tokens = table.number(row, "tokens"), memory = table.number(row, "peak memory");
    if (std::isnan(tokens)) continue;
    if (!fastest || tokens > table.number(*fastest, "tokens")) fastest = row;
    if (!leanest || memory < table.number(*leanest, "peak memory")) leanest = row;
    const double loss = table.number(row, "validation loss");
    low = std::fmin(low, loss);
    high = std::fmax(high, loss);
  }
  if (!fastest) return {};
  const auto name = [&](size_t row) {
    return str("attention `", table.text(row, "attention"), "`, wrapper `",
               table.text(row, "wrapper"), "`");
  };
  Sentences sentences = {
      str("Fastest: ", name(*fastest), ", ", table.text(*fastest, "tokens"), " tokens/s."),
      str("Least memory: ", name(*leanest), ", ", table.text(*leanest, "peak memory"), " GiB.")};
  if (std::isfinite(low))
    sentences.push_back(
        str("Validation losses lie between ", fixed(low, 3), " and ", fixed(high, 3), "."));
  return sentences;
}

Sentences answer_tokenizer(const Evidence& evidence) {
  for (const TableView& table : evidence.tables("tokenizer", {})) {
    // Every ratio to a peer in the table, whatever the case is called.
    std::vector<double> ratios;
    for (const auto& column : table.table().columns) {
      if (column.name != "ratio" && column.name.rfind("x ", 0) != 0) continue;
      for (size_t row = 0; row < table.rows(); ++row) {
        if (table.number(row, column.name) > 0) ratios.push_back(table.number(row, column.name));
      }
    }
    evidence.use(table);
    if (ratios.empty()) {
      return {str(count_of(table.rows(), "case"),
                  " measured; no peer was there to compare "
                  "with.")};
    }
    const double mean = measure::geometric_mean(ratios);
    return {str("Ours is ", speed_words(mean), " the peers (geometric mean of ",
                count_of(ratios.size(), "case"), ").")};
  }
  return {};
}

Sentences answer_limits(const Evidence& evidence) {
  const TableView table = evidence.table("limits", {"device", "limit", "measured", "unit"});
  Sentences sentences;
  for (size_t row = 0; row < table.rows(); ++row) {
    std::string sentence = str(table.text(row, "device"), ", ", table.text(row, "limit"), ": ",
                               table.text(row, "measured"), " ", table.text(row, "unit"));
    const double share = table.number(row, "share");
    if (!std::isnan(share)) sentence += str(", ", fixed(share, 0), " % of the data sheet");
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

}  // namespace

void add_further_questions(std::vector<Question>& questions) {
  const std::vector<Question> all = {
      {"limits", "", "limits", "What can this machine do at most?", "`flashstep info`",
       answer_limits},
      {"matrix", "", "matrix",
       "Training with every attention under every wrapper: which is fastest, which leanest?",
       "`flashstep bench matrix`", answer_matrix},
      {"tokenizer", "", "tokenizer", "How fast are training and encoding, beside other people's?",
       "`flashstep bench tokenizer`", answer_tokenizer},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
