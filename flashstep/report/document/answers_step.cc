// Answers about the time of a training step.
#include <algorithm>
#include <cmath>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kStepColumns = {"model",   "context", "precision", "attention",
                                               "mode",    "warm-up", "mean",      "deviation",
                                               "forward", "backward"};
// A deviation that does not move a conclusion.
constexpr double kSmallDeviation = 0.05;

std::string step_case(const TableView& table, size_t row) {
  return str(table.text(row, "model"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "precision"));
}

bool same(const TableView& table, size_t a, size_t b, const std::vector<std::string>& columns) {
  return std::all_of(columns.begin(), columns.end(), [&](const std::string& column) {
    return table.text(a, column) == table.text(b, column);
  });
}

Sentences answer_script(const Evidence& evidence) {
  const TableView table = evidence.table("step", kStepColumns);
  if (!table) return {};
  size_t timed = 0;
  for (size_t row = 0; row < table.rows(); ++row) timed += !std::isnan(table.number(row, "mean"));
  std::vector<std::string> commands;
  for (const auto& part : table.parts()) commands.push_back("`" + part.result->made.command + "`");
  return {str(join(commands),
              ": a model by its size or its hyper-parameters, a batch of random tokens, warm-up "
              "steps and timed ones, with the host waiting for the device after each; ",
              timed, " of ", count_of(table.rows(), "case"), " were timed.")};
}

Sentences answer_times(const Evidence& evidence) {
  const TableView table = evidence.table("step", kStepColumns);
  Sentences sentences;
  double most = 0;
  std::string shakiest;
  size_t without_room = 0;
  std::set<std::string> known;  // other commands of a preset measure some cases once more
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "warm-up") == "0") continue;
    const std::string name = step_case(table, row);
    if (!known.insert(name + table.text(row, "attention") + table.text(row, "mode")).second)
      continue;
    without_room += table.text(row, "mean") == "OOM";
    const double forward = table.number(row, "forward"), backward = table.number(row, "backward");
    if (std::isnan(forward) || std::isnan(backward)) continue;
    sentences.push_back(str(name, ": forward ", milliseconds(forward), ", backward ",
                            milliseconds(backward), " (", fixed(backward / forward, 1),
                            " times forward)."));
    const double share = table.number(row, "deviation") / table.number(row, "mean");
    if (share > most) most = share, shakiest = name;
  }
  if (sentences.empty()) return {};
  if (most > 0) {
    sentences.push_back(str(
        "The largest standard deviation is ", percent(most, 1), " of its mean (", shakiest, "): ",
        most <= kSmallDeviation ? "the times hardly vary." : "the times vary from step to step."));
  }
  if (without_room > 0)
    sentences.push_back(str(count_of(without_room, "case"), " did not fit into memory."));
  return sentences;
}

// A table with cases that differ in nothing but their warm-up.
TableView warmup_table(const Evidence& evidence) {
  for (const TableView& table : evidence.tables("step", kStepColumns)) {
    if (table.distinct("warm-up").size() < 2) continue;
    evidence.use(table);
    return table;
  }
  return {};
}

// One model and mode by its warm-up steps, least first.
struct WarmedUp {
  std::vector<std::string> steps;
  std::vector<double> means, deviations;

  double settled() const { return means.back(); }
  // No further from the mean with the most warm-up than that varies anyway.
  bool is_settled(size_t i) const {
    return std::abs(means[i] - settled()) <=
           std::max(kSmallDeviation * settled(), deviations.back());
  }
};

Sentences answer_warmup(const Evidence& evidence) {
  const TableView table = warmup_table(evidence);
  Sentences sentences;
  size_t slower = 0, compared = 0;
  for (const size_t none : table.where({{"warm-up", "0"}})) {
    WarmedUp warmed;
    std::string sentence =
        str(step_case(table, none), ", ", table.text(none, "mode"), ", by warm-up steps:");
    for (size_t row = 0; row < table.rows(); ++row) {
      if (!same(table, none, row, {"model", "context", "precision", "attention", "mode"})) continue;
      warmed.steps.push_back(table.text(row, "warm-up"));
      warmed.means.push_back(table.number(row, "mean"));
      warmed.deviations.push_back(table.number(row, "deviation"));
      sentence += str(" after ", warmed.steps.back(), " ", three_digits(warmed.means.back()),
                      " +- ", three_digits(warmed.deviations.back()), " ms,");
    }
    const double ratio = warmed.means.front() / warmed.settled();
    if (std::isnan(ratio)) continue;
    ++compared;
    slower += ratio > 1 && !warmed.is_settled(0);
    size_t enough = warmed.means.size() - 1;
    while (enough > 0 && warmed.is_settled(enough - 1)) --enough;
    sentences.push_back(str(sentence, " so that without warm-up the mean is ", fixed(ratio, 2),
                            " times that with the most; from ", warmed.steps[enough],
                            " on it is as near to that as that varies anyway."));
  }
  if (compared == 0) return {};
  sentences.push_back(
      2 * slower > compared
          ? "What is done once falls into the first steps, and these times do not tell its parts "
            "apart: memory from the system, threads, kernels that are loaded, algorithms that are "
            "chosen, AdamW's state."
          : "Here the first steps cost no more than the others vary anyway: what is done once is "
            "small beside a step.");
  return sentences;
}

Sentences answer_compiled_step(const Evidence& evidence) {
  std::vector<std::string> columns = kStepColumns;
  columns.insert(columns.end(), {"eager", "compiled", "tokens"});
  const TableView table = evidence.table("step", columns);
  Sentences sentences;
  std::vector<double> ratios;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double eager = table.number(row, "eager"), compiled = table.number(row, "compiled");
    if (!(eager > 0) || !(compiled > 0)) continue;
    ratios.push_back(compiled / eager);
    sentences.push_back(str(step_case(table, row), ", ", table.text(row, "mode"), ": PyTorch ",
                            three_digits(eager), " tokens/s, compiled ", three_digits(compiled),
                            ", flashstep ", three_digits(table.number(row, "tokens")), "."));
  }
  if (ratios.empty()) return {};
  const double mean = measure::geometric_mean(ratios);
  sentences.push_back(
      str("torch.compile makes PyTorch's model ", fixed(mean, 2),
          " times as fast (geometric mean of ", count_of(ratios.size(), "case"),
          "): ", mean > 1.02 ? "fusing element-wise operations pays." : "it does not pay here."));
  return sentences;
}

}  // namespace

void add_step_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep bench step`";
  const std::vector<Question> all = {
      {"benchmarking_script (a)", "2024 2025 2026", "step",
       "A program that times forward and backward passes of a model by its hyper-parameters.",
       needs, answer_script},
      {"benchmarking_script (b)", "2024 2025 2026", "step",
       "How long do forward and backward passes of each size take, and how much do the times vary?",
       needs, answer_times},
      {"benchmarking_script (c)", "2024 2025 2026", "step",
       "What happens without warm-up steps, or with one or two, and why?",
       "`flashstep bench step --warmup 0,1,2,5`", answer_warmup},
      {"torch_compile (b)", "2025 2026", "step",
       "What does compiling the whole model change, forward alone and in a training step?",
       "Python's torch and the compiler that it calls (`flashstep bench step --peers "
       "eager,compiled`)",
       answer_compiled_step, "step_peers"},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
