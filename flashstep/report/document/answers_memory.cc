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
constexpr double kMemorySame = 0.01;  // nearer than that is not worth a number
constexpr double kNearlyAll = 0.9;    // of a peak: then nothing else can change it much

bool is_forward(const std::string& mode) { return mode == "forward"; }

std::string memory_case(const TableView& table, size_t row) {
  return str(table.text(row, "size"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "mode"), ", ", table.text(row, "precision"));
}

std::string mebibytes(double value) { return three_digits(value) + " MiB"; }

// "temporaries (512 MiB) hold most of it": what holds more of a peak than anything else does.
std::string held_by(const TableView& table, size_t row) {
  std::string most;
  double value = -1;
  for (const char* kind : {"parameters", "gradients", "optimizer state", "activations",
                           "temporaries", "communication"}) {
    const double bytes = table.number(row, kind);
    if (bytes > value) value = bytes, most = kind;
  }
  if (most.empty()) return "";
  const bool is_one = most == "optimizer state" || most == "communication";
  return str(most, " (", mebibytes(value), ") ", is_one ? "holds" : "hold",
             value > table.number(row, "peak") / 2 ? " most of it" : " the largest part of it");
}

// The first passes of one size and context that were measured: those of fp32, where it was.
struct Passes {
  std::optional<size_t> forward, step;
};

Passes first_passes(const TableView& table, const std::string& size, const std::string& context) {
  Passes passes;
  for (const size_t row : table.where({{"size", size}, {"context", context}})) {
    if (std::isnan(table.number(row, "peak"))) continue;
    auto& first = is_forward(table.text(row, "mode")) ? passes.forward : passes.step;
    if (!first) first = row;
  }
  return passes;
}

// How much higher the steps peak than the forward passes alone.
std::string step_beside_forward(const std::vector<std::string>& cases,
                                const std::vector<double>& ratios) {
  std::vector<std::string> higher;
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (compare_measured(ratios[i], 1) <= 0) continue;
    higher.push_back(fixed(ratios[i], 2) + (ratios.size() > 1 ? " (" + cases[i] + ")" : ""));
  }
  if (higher.empty()) return "A training step peaks no higher than the forward pass here.";
  return str("A training step peaks ", join(higher),
             " times as high as the forward pass alone, whose activations go as soon as the next "
             "layer has read them",
             higher.size() < ratios.size() ? "; in the other cases no higher." : ".");
}

Sentences answer_timeline(const Evidence& evidence) {
  const TableView table = evidence.table("memory", kPeaks);
  Sentences sentences;
  std::vector<std::string> cases;
  std::vector<double> ratios;
  for (const std::string& size : table.distinct("size")) {
    for (const std::string& context : table.distinct("context")) {
      const Passes passes = first_passes(table, size, context);
      for (const auto& row : {passes.forward, passes.step}) {
        if (!row) continue;
        const std::string held = held_by(table, *row);
        sentences.push_back(str(
            memory_case(table, *row), ": the peak of ", mebibytes(table.number(*row, "peak")),
            " comes in ", table.text(*row, "peak in"), held.empty() ? "" : ", and ", held, "."));
      }
      if (!passes.forward || !passes.step ||
          table.text(*passes.forward, "precision") != table.text(*passes.step, "precision")) {
        continue;
      }
      cases.push_back(str(size, ", context ", context));
      ratios.push_back(table.number(*passes.step, "peak") / table.number(*passes.forward, "peak"));
    }
  }
  if (!ratios.empty()) sentences.push_back(step_beside_forward(cases, ratios));
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

// Of one kind at a peak; an empty cell holds nothing.
double held(const TableView& table, size_t row, const char* kind) {
  const double bytes = table.number(row, kind);
  return std::isnan(bytes) ? 0 : bytes;
}

// Float32 with autocast too.
double held_by_state(const TableView& table, size_t row) {
  return held(table, row, "parameters") + held(table, row, "gradients") +
         held(table, row, "optimizer state");
}

// What the passes themselves make, copies of the weights included.
double held_by_pass(const TableView& table, size_t row) {
  return held(table, row, "activations") + held(table, row, "temporaries");
}

// A pass in bf16 beside the same pass in fp32.
struct PrecisionPair {
  size_t fp32 = 0, bf16 = 0;  // rows
  double ratio = 1;           // of the peaks
};

std::vector<PrecisionPair> precision_pairs(const TableView& table) {
  std::vector<PrecisionPair> pairs;
  for (const size_t row : table.where({{"precision", "bf16"}})) {
    const auto full = table.first({{"size", table.text(row, "size")},
                                   {"context", table.text(row, "context")},
                                   {"mode", table.text(row, "mode")},
                                   {"precision", "fp32"}});
    if (!full) continue;
    const double ratio = table.number(row, "peak") / table.number(*full, "peak");
    if (!std::isnan(ratio)) pairs.push_back({.fp32 = *full, .bf16 = row, .ratio = ratio});
  }
  return pairs;
}

// "49 % more": beside fp32, and why there is no difference, where the rows tell it.
std::string peak_beside_fp32(const TableView& table, const PrecisionPair& pair) {
  const int order = compare_measured(pair.ratio, 1);
  if (order < 0) return percent(1 - pair.ratio) + " less";
  if (order > 0) return percent(pair.ratio - 1) + " more";
  for (const size_t row : {pair.fp32, pair.bf16}) {
    if (held_by_state(table, row) < kNearlyAll * table.number(row, "peak"))
      return "the same within 2 %";
  }
  return "the same within 2 %: nearly all of both are parameters, gradients and AdamW's state, "
         "which stay float32";
}

// Why peaks rise and fall, where what the passes make accounts for most of the difference.
Sentences reasons_of(const TableView& table, const std::vector<PrecisionPair>& pairs) {
  double risen = 0, more = 0, copies = 0, fallen = 0, less = 0;
  for (const PrecisionPair& pair : pairs) {
    const double peaks = table.number(pair.bf16, "peak") - table.number(pair.fp32, "peak");
    const double made = held_by_pass(table, pair.bf16) - held_by_pass(table, pair.fp32);
    const int order = compare_measured(pair.ratio, 1);
    if (order > 0) {
      risen += peaks, more += made;
      copies = std::fmax(copies, held(table, pair.bf16, "parameters") / 2);
    } else if (order < 0) {
      fallen -= peaks, less -= made;
    }
  }
  Sentences sentences;
  if (risen > 0 && more > risen / 2 && copies > 0) {
    sentences.push_back(str(
        "Where it rises: autocast makes 16-bit copies of the weights and keeps them for the whole "
        "pass, beside the float32 ones, up to half as many bytes again as the parameters (",
        mebibytes(copies), ")."));
  }
  if (fallen > 0 && less > fallen / 2) {
    sentences.push_back(
        str("Where it falls: 16-bit activations save more than autocast's 16-bit copies of the "
            "weights take; what the passes make takes ",
            mebibytes(less), " less in these cases together."));
  }
  return sentences;
}

// Of peaks that come in the same stage: others hold different things.
std::string kinds_beside_fp32(const TableView& table, const std::vector<PrecisionPair>& pairs) {
  double activations[2] = {}, state[2] = {};
  for (const PrecisionPair& pair : pairs) {
    if (table.text(pair.fp32, "peak in") != table.text(pair.bf16, "peak in")) continue;
    for (const bool half : {false, true}) {
      const size_t row = half ? pair.bf16 : pair.fp32;
      activations[half] += held(table, row, "activations");
      state[half] += held_by_state(table, row);
    }
  }
  if (activations[0] < 1 || state[0] == 0) return "";  // MiB
  return str("; where it comes in the same stage, activations take ",
             percent(activations[1] / activations[0]),
             " of the bytes that they take in fp32, parameters, gradients and AdamW's state ",
             percent(state[1] / state[0]));
}

Sentences answer_mixed(const Evidence& evidence) {
  const TableView table = evidence.table("memory", kPeaks);
  const std::vector<PrecisionPair> pairs = precision_pairs(table);
  if (pairs.empty()) return {};
  Sentences sentences;
  Tally peaks;
  double most_saved = 0;
  for (const PrecisionPair& pair : pairs) {
    peaks.add(pair.ratio, 1);
    most_saved = std::fmax(most_saved, 1 - pair.ratio);
    sentences.push_back(str(memory_case(table, pair.bf16), ": ",
                            mebibytes(table.number(pair.bf16, "peak")), " against ",
                            mebibytes(table.number(pair.fp32, "peak")), " in fp32 (",
                            peak_beside_fp32(table, pair), ")."));
  }
  std::string sentence = "The peak is " + peaks.words("lower", "the same within 2 %", "higher");
  if (peaks.less() > 0) sentence += str(", by ", percent(most_saved), " at most");
  sentences.push_back(sentence + kinds_beside_fp32(table, pairs) + ".");
  for (const std::string& reason : reasons_of(table, pairs)) sentences.push_back(reason);
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

// Of the first forward pass of the table: what was there before it, and what it makes itself.
Sentences answer_largest(const Evidence& evidence) {
  const TableView table =
      evidence.table("memory", {"size", "context", "mode", "precision", "bytes", "count", "kind",
                                "shape", "range", "made by", "source"});
  Sentences sentences;
  bool has_parameters = false;
  std::string pass;
  for (size_t row = 0; row < table.rows() && sentences.size() < 4; ++row) {
    if (!is_forward(table.text(row, "mode"))) continue;
    if (pass.empty()) pass = memory_case(table, row);
    if (memory_case(table, row) != pass) continue;
    if (table.text(row, "kind") == "parameters") {
      if (has_parameters) continue;
      has_parameters = true;
      sentences.push_back("The largest, made before the pass: " + allocation_of(table, row) + ".");
    } else if (table.text(row, "range").rfind("forward", 0) == 0) {
      sentences.push_back("Made by the pass: " + allocation_of(table, row) + ".");
    }
  }
  if (!sentences.empty()) sentences.front() = pass + ". " + sentences.front();
  return sentences;
}

// "as the formula says (130 MiB)", "3.8 % more than the formula's 130 MiB", or that it is not that.
std::string beside_expected(double measured, double expected, const char* agrees, const char* owner,
                            const char* differs) {
  const double ratio = measured / expected, apart = std::abs(ratio - 1);
  if (apart <= kMemorySame) return str(agrees, " (", mebibytes(expected), ")");
  const std::string more = percent(apart, 1) + (ratio > 1 ? " more" : " less");
  return apart <= kMemoryAgrees ? str(more, " than ", owner, " ", mebibytes(expected))
                                : str(differs, " (", mebibytes(expected), ") but ", more);
}

std::string block_case(const TableView& table, size_t row) {
  return str(table.text(row, "size"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "precision"), ", attention ", table.text(row, "attention"));
}

// The operators of each size's and precision's first case.
Sentences saved_most(const Evidence& evidence) {
  const TableView table = evidence.table(
      "memory", {"size", "context", "precision", "attention", "operator", "saved", "share"});
  Sentences sentences;
  for (const std::string& size : table.distinct("size")) {
    for (const std::string& precision : table.distinct("precision")) {
      const auto rows = table.where({{"size", size}, {"precision", precision}});
      if (rows.empty()) continue;
      const std::string first = block_case(table, rows.front());
      Sentences top;
      for (const size_t row : rows) {
        if (block_case(table, row) != first) continue;
        top.push_back(str(table.text(row, "operator"), " ", table.text(row, "share"), " %"));
      }
      sentences.push_back(str(first, ": most is saved by ", join(top), "."));
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
    const double saved = table.number(row, "saved"), gradients = table.number(row, "gradients");
    if (std::isnan(saved)) continue;
    std::string sentence =
        str(block_case(table, row), ": a block saves ", mebibytes(saved), " for backward, ",
            beside_expected(saved, table.number(row, "formula"), "as the formula says",
                            "the formula's", "NOT what the formula says"));
    if (!std::isnan(gradients)) {
      sentence += str("; its gradients take ", mebibytes(gradients), ", ",
                      beside_expected(gradients, table.number(row, "expected"), "as expected",
                                      "the expected", "NOT what one expects"));
    }
    sentences.push_back(sentence + ".");
  }
  for (const std::string& sentence : saved_most(evidence)) sentences.push_back(sentence);
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
