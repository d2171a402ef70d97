// Answers about mixed precision.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"
#include "flashstep/report/precision.h"

namespace flashstep::report {
namespace {

Sentences answer_accumulation(const Evidence& evidence) {
  const TableView table = evidence.table(
      "precision", {"sum + addend", "result", "error", "from the addend", "from the sum"});
  if (!table) return {};
  std::vector<std::string> results;
  for (size_t row = 0; row < table.rows(); ++row)
    results.push_back(table.text(row, "sum + addend") + " " + table.text(row, "result"));
  Sentences sentences = {"A thousand additions of 0.01: " + join(results, "; ") + "."};
  const auto half = table.first({{"sum + addend", "float16 + float16"}});
  const auto mixed = table.first({{"sum + addend", "float32 + float16"}});
  const auto cast = table.first({{"sum + addend", "float32 + float16 cast to float32"}});
  if (half && mixed) {
    const double of_half = std::abs(table.number(*half, "error"));
    const double of_mixed = std::abs(table.number(*mixed, "error"));
    const double of_addend = std::abs(table.number(*half, "from the addend"));
    const double of_sum = std::abs(table.number(*half, "from the sum"));
    sentences.push_back(
        str("Summing in float16 is off by ", three_digits(of_half), " %, of which ",
            of_sum > of_addend ? "the sum's own rounding" : "rounding the addend once",
            " is the larger part; with a sum in float32 it is ", three_digits(of_mixed), " %, ",
            of_mixed < of_half ? "so that the sum must be kept in float32, whatever is added."
                               : "which is no better here."));
  }
  if (mixed && cast) {
    const bool same = table.number(*mixed, "result") == table.number(*cast, "result");
    sentences.push_back(same ? "Casting the addend first changes nothing: the addition is done in "
                               "float32 in both cases."
                             : "Casting the addend first changes the result.");
  }
  return sentences;
}

// What each column of dtypes says, and where the devices differ.
Sentences answer_dtypes(const Evidence& evidence) {
  const TableView table = evidence.table("precision", {"tensor", "CPU, float16", "CPU, bfloat16"});
  if (!table) return {};
  Sentences sentences;
  for (const char* column : {"CUDA, float16", "CUDA, bfloat16", "CPU, float16", "CPU, bfloat16"}) {
    if (!table.has(column)) continue;
    std::vector<std::string> parts;
    for (size_t row = 0; row < table.rows(); ++row)
      parts.push_back(table.text(row, "tensor") + " " + table.text(row, column));
    sentences.push_back(str(column, ": ", join(parts), "."));
  }
  if (!table.has("CUDA, float16")) {
    sentences.emplace_back(
        "These are the CPU's rules of autocast; a GPU's were not observed here.");
    return sentences;
  }
  std::vector<std::string> different;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "CPU, float16") != table.text(row, "CUDA, float16"))
      different.push_back(table.text(row, "tensor"));
  }
  sentences.push_back(different.empty() ? "CPU and GPU have the same rules for all of them."
                                        : "CPU and GPU differ in " + join(different) + ".");
  return sentences;
}

struct SufferingSteps {
  bool known = false;              // the table has this dtype
  std::vector<std::string> steps;  // "square (sd 300: overflow)"
  bool not_finite = false;
};

// Rows that are no step: the least that any 16-bit norm errs, and all steps together.
bool is_norm_step(const std::string& name) {
  return name != "result rounded" && name.rfind("all, ", 0) != 0;
}

// The inputs with which one step errs far more than rounding the result does: "sd 1", "sd 300:
// overflow". A cell that is no number overflowed.
std::vector<std::string> suffering_inputs(const TableView& table, const std::string& dtype,
                                          size_t rounded, size_t row, bool& not_finite) {
  std::vector<std::string> inputs;
  for (const measure::Column& column : table.table().columns) {
    if (column.name.rfind(dtype + " ", 0) != 0) continue;
    const double error = table.number(row, column.name);
    if (error <= kSufferingFactor * table.number(rounded, column.name)) continue;
    not_finite |= std::isnan(error);
    inputs.push_back(column.name.substr(dtype.size() + 1) +
                     (std::isnan(error) ? ": " + table.text(row, column.name) : ""));
  }
  return inputs;
}

// Steps of LayerNorm that suffer in one dtype ("fp16"), and with which of its inputs (the columns
// "fp16 sd 300").
SufferingSteps suffering_in(const TableView& table, const std::string& dtype) {
  SufferingSteps suffering;
  const auto rounded = table.first({{"norm", "LayerNorm"}, {"in 16 bits", "result rounded"}});
  for (const measure::Column& column : table.table().columns)
    suffering.known |= rounded && column.name.rfind(dtype + " ", 0) == 0;
  if (!suffering.known) return suffering;
  for (const size_t row : table.where({{"norm", "LayerNorm"}})) {
    const std::string step = table.text(row, "in 16 bits");
    if (!is_norm_step(step)) continue;
    const auto inputs = suffering_inputs(table, dtype, *rounded, row, suffering.not_finite);
    if (!inputs.empty()) suffering.steps.push_back(step + " (" + join(inputs) + ")");
  }
  return suffering;
}

std::string suffering_sentence(const std::string& dtype, const SufferingSteps& suffering) {
  if (suffering.steps.empty())
    return str("In ", dtype, " no step of LayerNorm errs much more than rounding its result.");
  return str("In ", dtype, " these steps of LayerNorm err more than ", kSufferingFactor,
             " times what rounding its result costs, with the inputs in brackets (by their "
             "standard deviation, sd, or their mean): ",
             join(suffering.steps, "; "), ".");
}

Sentences answer_norms(const Evidence& evidence) {
  const TableView table = evidence.table("precision", {"norm", "in 16 bits"});
  if (!table) return {};
  const SufferingSteps half = suffering_in(table, "fp16"), brain = suffering_in(table, "bf16");
  if (!half.known || !brain.known) return {};
  Sentences sentences = {suffering_sentence("float16", half),
                         suffering_sentence("bfloat16", brain)};
  sentences.push_back(half.not_finite && !brain.not_finite
                          ? "bfloat16 has float32's range, so that nothing overflows or vanishes; "
                          : "bfloat16 does not behave better in range here; ");
  sentences.back() +=
      brain.steps.empty()
          ? "it needs no special treatment of the norm."
          : "its eight bits still spoil sums and differences, so that these stay in "
            "float32 with it too.";
  return sentences;
}

// "1.62 times as fast as fp32", "slower than fp32 (0.90 times its speed)".
std::string speed_beside_fp32(double gain) {
  return compare_measured(gain, 1) < 0
             ? str("slower than fp32 (", fixed(gain, 2), " times its speed)")
             : speed_words(gain) + " fp32";
}

struct Gain {
  std::string model;
  double backward;
};

// Over the sizes in their order. Only what holds from each size to the next is a trend.
std::string trend_of(const std::vector<Gain>& gains) {
  bool never_falls = true, never_rises = true;
  for (size_t i = 1; i < gains.size(); ++i) {
    const int order = compare_measured(gains[i].backward, gains[i - 1].backward);
    never_falls &= order >= 0;
    never_rises &= order <= 0;
  }
  const auto by_gain = [](const Gain& a, const Gain& b) { return a.backward < b.backward; };
  const auto [low, high] = std::minmax_element(gains.begin(), gains.end(), by_gain);
  const std::string from_to =
      str(": ", fixed(gains.front().backward, 2), " to ", fixed(gains.back().backward, 2), ".");
  if (compare_measured(high->backward, low->backward) == 0)
    return "Over these sizes the gain of backward is the same within 2 %" + from_to;
  if (never_falls && low->backward < gains.back().backward)
    return "From size to size the gain of backward grows" + from_to;
  if (never_rises && low->backward < gains.front().backward)
    return "From size to size the gain of backward falls" + from_to;
  return str("The gain of backward does not go one way over these sizes: it is lowest with ",
             low->model, " (", fixed(low->backward, 2), ") and highest with ", high->model, " (",
             fixed(high->backward, 2), ").");
}

Sentences answer_sizes(const Evidence& evidence) {
  const TableView table =
      evidence.table("precision", {"model", "fp32 forward", "bf16 forward", "gain forward",
                                   "gain backward", "loss error", "gradient error"});
  Sentences sentences;
  std::vector<Gain> gains;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double forward = table.number(row, "gain forward");
    const double backward = table.number(row, "gain backward");
    const std::string model = table.text(row, "model");
    if (std::isnan(forward) || std::isnan(backward)) {
      sentences.push_back(str(model, ": ", table.text(row, "fp32 forward"), "."));
      continue;
    }
    gains.push_back({model, backward});
    sentences.push_back(str(model, ": forward ", milliseconds(table.number(row, "fp32 forward")),
                            " in fp32 and ", milliseconds(table.number(row, "bf16 forward")),
                            " in bf16, ", speed_beside_fp32(forward), "; backward ",
                            speed_beside_fp32(backward), ". The gradient differs by ",
                            three_digits(table.number(row, "gradient error")), " of its norm."));
  }
  if (gains.empty()) return {};
  if (gains.size() > 1) sentences.push_back(trend_of(gains));
  return sentences;
}

}  // namespace

void add_precision_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep precision`";
  const std::vector<Question> all = {
      {"mixed_precision_accumulation", "2025 2026", "precision",
       "A thousand additions of 0.01 with sum and addend in float32 and float16: how exact is "
       "each?",
       needs, answer_accumulation},
      {"benchmarking_mixed_precision (a)", "2024 2025 2026", "precision",
       "Which dtypes have parameters, outputs of layers, logits, loss and gradients of a small "
       "model "
       "under autocast?",
       needs, answer_dtypes},
      {"benchmarking_mixed_precision (b)", "2024 2025 2026", "precision",
       "Which parts of a layer norm are sensitive to float16, and does bfloat16 need the same "
       "care?",
       needs, answer_norms},
      {"benchmarking_mixed_precision (c)", "2024 2025 2026", "precision",
       "What does mixed precision with bf16 change for each size, and is there a trend?", needs,
       answer_sizes},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
