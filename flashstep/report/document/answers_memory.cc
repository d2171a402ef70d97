// Answers about the memory of a pass.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kPeaks = {"size", "context", "mode", "precision", "peak", "peak in"};
// Formulas leave out temporaries, and allocators round up.
constexpr double kMemoryAgrees = 0.1;

bool is_forward(const std::string& mode) { return mode == "forward"; }

std::string memory_case(const TableView& table, size_t row) {
  return str(table.text(row, "size"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "mode"), ", ", table.text(row, "precision"));
}

std::string mebibytes(double value) { return three_digits(value) + " MiB"; }

Sentences answer_timeline(const Evidence& evidence) {
  const TableView table = evidence.table("memory", kPeaks);
  Sentences sentences;
  std::optional<size_t> forward, step;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (std::isnan(table.number(row, "peak"))) continue;
    auto& first = is_forward(table.text(row, "mode")) ? forward : step;
    if (!first) first = row;
  }
  for (const auto& row : {forward, step}) {
    if (!row) continue;
    std::string sentence =
        str(memory_case(table, *row), ": the peak of ", mebibytes(table.number(*row, "peak")),
            " comes in ", table.text(*row, "peak in"));
    std::string most;
    double value = -1;
    for (const char* kind : {"parameters", "gradients", "optimizer state", "activations",
                             "temporaries", "communication"}) {
      const double bytes = table.number(*row, kind);
      if (bytes > value) value = bytes, most = kind;
    }
    if (value >= 0) sentence += str(", and ", most, " (", mebibytes(value), ") hold most of it");
    sentences.push_back(sentence + ".");
  }
  if (forward && step) {
    const double ratio = table.number(*step, "peak") / table.number(*forward, "peak");
    sentences.push_back(
        ratio > 1.02 ? str("A training step peaks ", fixed(ratio, 2),
                           " times as high as the forward pass alone, whose activations go as soon "
                           "as the next layer has read them.")
                     : std::string("A training step peaks no higher than the forward pass here."));
  }
  return sentences;
}

Sentences answer_peaks(const Evidence& evidence) {
  const TableView table = evidence.table("memory", kPeaks);
  Sentences sentences;
  for (const size_t row : table.where({{"precision", "fp32"}})) {
    const std::string peak = table.text(row, "peak");
    sentences.push_back(memory_case(table, row) + ": " +
                        (std::isnan(table.number(row, "peak")) ? peak : peak + " MiB") + ".");
  }
  return sentences;
}

// Sums over the rows that are compared of what holds memory at a peak.
struct HeldAtPeaks {
  double activations = 0, state = 0;

  void add(const TableView& table, size_t row) {
    activations += table.number(row, "activations");
    for (const char* kind : {"parameters", "gradients", "optimizer state"})
      state += table.number(row, kind);
  }
};

Sentences answer_mixed(const Evidence& evidence) {
  const TableView table = evidence.table("memory", kPeaks);
  Sentences sentences;
  Tally peaks;
  HeldAtPeaks in_fp32, in_bf16;
  double most_saved = 0;
  for (const size_t row : table.where({{"precision", "bf16"}})) {
    const auto full = table.first({{"size", table.text(row, "size")},
                                   {"context", table.text(row, "context")},
                                   {"mode", table.text(row, "mode")},
                                   {"precision", "fp32"}});
    if (!full) continue;
    const double fp32 = table.number(*full, "peak"), bf16 = table.number(row, "peak");
    if (std::isnan(fp32) || std::isnan(bf16)) continue;
    peaks.add(bf16, fp32);
    in_fp32.add(table, *full);
    in_bf16.add(table, row);
    most_saved = std::fmax(most_saved, 1 - bf16 / fp32);
    sentences.push_back(str(
        memory_case(table, row), ": ", mebibytes(bf16), " against ", mebibytes(fp32), " in fp32 (",
        bf16 < fp32 ? percent(1 - bf16 / fp32) + " less" : percent(bf16 / fp32 - 1) + " more",
        ")."));
  }
  if (peaks.cases() == 0) return {};
  std::string sentence = "The peak is " + peaks.words("lower", "the same within 2 %", "higher");
  if (peaks.less() > 0) sentence += str(", by ", percent(most_saved), " at most");
  const double activations = in_bf16.activations / in_fp32.activations;
  const double state = in_bf16.state / in_fp32.state;
  if (std::isfinite(activations)) {
    sentence += str("; at the peaks activations take ", percent(activations),
                    " of the bytes that they take in fp32");
    if (std::isfinite(state))
      sentence += str(", parameters, gradients and AdamW's state ", percent(state));
  }
  sentences.push_back(sentence + ".");
  return sentences;
}

Sentences answer_residual(const Evidence& evidence) {
  const TableView table =
      evidence.table("memory", {"size", "context", "derivation", "formula", "measured"});
  Sentences sentences;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double formula = table.number(row, "formula"), measured = table.number(row, "measured");
    std::string sentence = str(table.text(row, "size"), ", context ", table.text(row, "context"),
                               ": ", table.text(row, "derivation"), " = ", mebibytes(formula));
    if (!std::isnan(measured)) {
      sentence += std::abs(measured / formula - 1) <= 1e-3
                      ? "; the tensor that was measured has just that"
                      : "; the tensor that was measured has " + mebibytes(measured) + " INSTEAD";
    }
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

// Of one line of the table of the largest allocations.
std::string allocation_of(const TableView& table, size_t row) {
  const std::string source = table.text(row, "source"), maker = table.text(row, "made by");
  const std::string range = table.text(row, "range");
  return str(mebibytes(table.number(row, "bytes")), ", ", table.text(row, "count"),
             " times: ", table.text(row, "kind"), " of shape ", table.text(row, "shape"),
             ", made by ", maker, source.empty() || source == maker ? "" : " (" + source + ")",
             range.empty() ? "" : " in " + range);
}

// What was there before the pass, and what the pass itself makes.
Sentences answer_largest(const Evidence& evidence) {
  const TableView table = evidence.table(
      "memory", {"size", "mode", "bytes", "count", "kind", "shape", "range", "made by", "source"});
  Sentences sentences;
  bool has_parameters = false;
  for (size_t row = 0; row < table.rows() && sentences.size() < 4; ++row) {
    if (!is_forward(table.text(row, "mode"))) continue;
    if (table.text(row, "kind") == "parameters") {
      if (has_parameters) continue;
      has_parameters = true;
      sentences.push_back("The largest, made before the pass: " + allocation_of(table, row) + ".");
    } else if (table.text(row, "range").rfind("forward", 0) == 0) {
      sentences.push_back("Made by the pass: " + allocation_of(table, row) + ".");
    }
  }
  return sentences;
}

Sentences answer_block(const Evidence& evidence) {
  const TableView table =
      evidence.table("memory", {"size", "context", "precision", "attention", "block", "saved",
                                "formula", "gradients", "expected"});
  Sentences sentences;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double saved = table.number(row, "saved"), formula = table.number(row, "formula");
    const double gradients = table.number(row, "gradients");
    const double expected = table.number(row, "expected");
    if (std::isnan(saved)) continue;
    std::string sentence =
        str(table.text(row, "size"), ", context ", table.text(row, "context"), ", ",
            table.text(row, "precision"), ", attention ", table.text(row, "attention"),
            ": a block saves ", mebibytes(saved), " for backward, ",
            std::abs(saved / formula - 1) <= kMemoryAgrees ? "as the formula says ("
                                                           : "NOT what the formula says (",
            mebibytes(formula), ")");
    if (!std::isnan(gradients)) {
      sentence += str("; its gradients take ", mebibytes(gradients), ", ",
                      std::abs(gradients / expected - 1) <= kMemoryAgrees ? "as expected ("
                                                                          : "where one expects (",
                      mebibytes(expected), ")");
    }
    sentences.push_back(sentence + ".");
  }
  const TableView operators = evidence.table("memory", {"size", "operator", "saved", "share"});
  Sentences top;
  for (size_t row = 0; row < operators.rows() && top.size() < 5; ++row) {
    if (operators.text(row, "size") != operators.text(0, "size")) break;
    top.push_back(str(operators.text(row, "operator"), " ", operators.text(row, "share"), " %"));
  }
  if (!top.empty()) sentences.push_back("Most is saved by " + join(top) + ".");
  return sentences;
}

}  // namespace

void add_memory_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep memory`";
  const char* years = "2024 2025 2026";
  const std::vector<Question> all = {
      {"memory_profiling (a)", years, "memory",
       "Memory over time in a forward pass and in a training step: which stage makes the peaks?",
       needs, answer_timeline},
      {"memory_profiling (b)", years, "memory",
       "The peak of each context length, forward alone and with a whole step?", needs,
       answer_peaks},
      {"memory_profiling (c)", years, "memory", "What does mixed precision do to these peaks?",
       needs, answer_mixed},
      {"memory_profiling (d)", years, "memory",
       "How large is one tensor of the residual stream in fp32?", needs, answer_residual},
      {"memory_profiling (e)", years, "memory",
       "Which are the largest allocations of a forward pass, and where do they come from?", needs,
       answer_largest},
      {"memory_profiling (f)", "2026", "memory",
       "What does one block save for backward, by which operations, and how large are its "
       "gradients, beside what one expects?",
       needs, answer_block},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
