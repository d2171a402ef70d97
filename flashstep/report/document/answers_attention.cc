// Answers about attention: the plain formula, what compiling it brings, and tiled kernels.
#include <algorithm>
#include <cmath>
#include <map>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kGrid = {"contestant", "dtype",          "D", "N", "forward",
                                        "backward",   "before backward"};
const std::vector<std::string> kRace = {"dtype", "N",    "D",    "mask",
                                        "pass",  "ours", "time", "x best peer"};
const std::vector<std::string> kRuns = {"dtype",      "N",     "mask", "pass",
                                        "contestant", "whose", "wrong"};

// The kernel of this device among the grid's contestants.
std::string our_name(const TableView& table) {
  for (const char* name : {"cuda", "cpu"}) {
    if (table.first({{"contestant", name}})) return name;
  }
  return "auto";
}

double geometric(const std::vector<double>& ratios) { return measure::geometric_mean(ratios); }

// How fast a column grows between the two longest lengths that `contestant` has at its last head
// dim: the exponent of N. NaN without two of them.
double exponent(const TableView& table, const std::string& contestant, const std::string& column) {
  std::optional<size_t> shorter, longer;
  for (const size_t row : table.where({{"contestant", contestant}})) {
    if (!(table.number(row, column) > 0)) continue;
    const bool same = longer && table.text(row, "D") == table.text(*longer, "D") &&
                      table.text(row, "dtype") == table.text(*longer, "dtype") &&
                      table.number(row, "N") > table.number(*longer, "N");
    shorter = same ? longer : std::nullopt;
    longer = row;
  }
  if (!shorter) return NAN;
  return std::log(table.number(*longer, column) / table.number(*shorter, column)) /
         std::log(table.number(*longer, "N") / table.number(*shorter, "N"));
}

std::string growth(double power) {
  return str("N^", fixed(power, 1),
             power > 2.5   ? ", faster than the square of the length"
             : power > 1.5 ? ", with the square of the length"
             : power > 0.7 ? ", about with the length"
                           : ", more slowly than the length");
}

Sentences describe_largest(const TableView& table) {
  std::optional<size_t> largest;
  for (const size_t row : table.where({{"contestant", "naive"}})) {
    if (std::isnan(table.number(row, "backward"))) continue;
    if (!largest || table.number(row, "N") >= table.number(*largest, "N")) largest = row;
  }
  if (!largest) return {};
  return {str("The formula's longest case that fits (N ", table.text(*largest, "N"), ", D ",
              table.text(*largest, "D"), ", ", table.text(*largest, "dtype"), ") takes ",
              milliseconds(table.number(*largest, "forward")), " forward and ",
              milliseconds(table.number(*largest, "backward")), " backward.")};
}

// How many (B, N, N) matrices the formula's longest case that fits held at once, where memory was
// counted, and what so many of `matrix` GiB are.
std::string matrices_at_once(const TableView& table, double matrix) {
  std::optional<size_t> longest;
  for (const size_t row : table.where({{"contestant", "naive"}})) {
    if (!(table.number(row, "backward peak") > 0) || !(table.number(row, "forward peak") > 0))
      continue;
    if (!longest || table.number(row, "N") > table.number(*longest, "N")) longest = row;
  }
  if (!longest) return "";
  const double n = table.number(*longest, "N"), batch = table.number(*longest, "B");
  const double element = table.text(*longest, "dtype") == "fp32" ? 4 : 2;
  const double one = batch * n * n * element / (1 << 20);  // MiB
  const double forward = table.number(*longest, "forward peak") / one;
  const double backward = table.number(*longest, "backward peak") / one;
  return str(" At N ", table.text(*longest, "N"), " forward held ", fixed(forward, 1),
             " of them at once and backward ", fixed(backward, 1),
             ", Q, K, V and their gradients included: here that would be ",
             fixed(forward * matrix, 1), " and ", fixed(backward * matrix, 1), " GiB.");
}

// The first of the formula's rows without room, and what it would have needed.
std::string out_of_memory(const TableView& table) {
  std::optional<size_t> smallest;
  for (const size_t row : table.where({{"contestant", "naive"}})) {
    if (table.text(row, "forward") != "OOM" && table.text(row, "backward") != "OOM") continue;
    if (!smallest || table.number(row, "N") < table.number(*smallest, "N")) smallest = row;
  }
  if (!smallest) {
    double longest = 0;
    for (const size_t row : table.where({{"contestant", "naive"}}))
      longest = std::fmax(longest, table.number(row, "N"));
    return str("No case of the formula runs out of memory here, up to N ", fixed(longest, 0), ".");
  }
  const double n = table.number(*smallest, "N"), batch = table.number(*smallest, "B");
  const double element = table.text(*smallest, "dtype") == "fp32" ? 4 : 2;
  const double matrix = batch * n * n * element / (1 << 30);
  return str("The smallest that runs out of memory has N ", table.text(*smallest, "N"), ", D ",
             table.text(*smallest, "D"), ", ", table.text(*smallest, "dtype"),
             ": one (B, N, N) matrix is ", table.text(*smallest, "B"), " x ",
             table.text(*smallest, "N"), "^2 x ", element, " bytes = ", fixed(matrix, 2), " GiB.",
             matrices_at_once(table, matrix));
}

// What the tiled kernel keeps at the longest case of both.
std::string remedy(const TableView& table) {
  const std::string ours = our_name(table);
  for (const char* column : {"before backward", "backward"}) {
    double ratio = NAN;
    std::string where;
    for (const size_t row : table.where({{"contestant", "naive"}})) {
      const auto other = table.first({{"contestant", ours},
                                      {"dtype", table.text(row, "dtype")},
                                      {"D", table.text(row, "D")},
                                      {"N", table.text(row, "N")}});
      if (!other) continue;
      const double theirs = table.number(row, column), value = table.number(*other, column);
      if (!(theirs > 0) || !(value > 0)) continue;
      ratio = theirs / value;
      where = str("N ", table.text(row, "N"), ", D ", table.text(row, "D"));
    }
    if (std::isnan(ratio)) continue;
    const bool memory = std::string(column) == "before backward";
    const std::string what = memory ? "memory kept for backward" : "time of backward";
    return str(
        "Computing in tiles with a running maximum and sum (FlashAttention-2) stores no (N, "
        "N) matrix: the ",
        what, " at ", where, " is ",
        compare_measured(ratio, 1) > 0 ? three_digits(ratio) + " times smaller with `" + ours +
                                             "` than with the "
                                             "formula."
                                       : "NOT smaller with `" + ours + "` (" + fixed(ratio, 2) +
                                             " of the formula's over its own).");
  }
  return "";
}

Sentences answer_grid(const Evidence& evidence) {
  const TableView table = evidence.table("attention_grid", kGrid);
  if (!table || !table.first({{"contestant", "naive"}})) return {};
  Sentences sentences = describe_largest(table);
  sentences.push_back(out_of_memory(table));
  const double memory = exponent(table, "naive", "before backward");
  const double time = exponent(table, "naive", "backward");
  if (!std::isnan(memory)) {
    sentences.push_back("Memory kept for backward grows as " + growth(memory) + ".");
  } else if (!std::isnan(time)) {
    sentences.push_back(
        "Memory of tensors is counted on GPUs alone; the time of backward grows as " +
        growth(time) + ".");
  }
  const std::string tiled = remedy(table);
  if (!tiled.empty()) sentences.push_back(tiled);
  return sentences;
}

Sentences answer_compiled_attention(const Evidence& evidence) {
  const TableView table = evidence.table("attention_grid", kGrid);
  std::vector<double> forward, backward, kept;
  for (const size_t row : table.where({{"contestant", "naive"}})) {
    const auto other = table.first({{"contestant", "compiled"},
                                    {"dtype", table.text(row, "dtype")},
                                    {"D", table.text(row, "D")},
                                    {"N", table.text(row, "N")}});
    if (!other) continue;
    const double f = table.number(row, "forward") / table.number(*other, "forward");
    const double b = table.number(row, "backward") / table.number(*other, "backward");
    const double memory =
        table.number(*other, "before backward") / table.number(row, "before backward");
    if (f > 0 && b > 0) forward.push_back(f), backward.push_back(b);
    if (memory > 0) kept.push_back(memory);
  }
  if (forward.empty()) return {};
  Sentences sentences = {
      str("Through torch.compile the formula is ", speed_words(geometric(forward)),
          " without it forward and ", speed_words(geometric(backward)),
          " without it backward (geometric mean over ", count_of(forward.size(), "case"), ").")};
  if (!kept.empty()) {
    const int order = compare_measured(geometric(kept), 1);
    sentences.push_back(str("It keeps ", percent(geometric(kept)),
                            " of the formula's memory for backward: ",
                            order < 0    ? "part of the (N, N) matrices is not stored any more."
                            : order == 0 ? "the (N, N) matrices are stored all the same."
                                         : "more is stored than without it."));
  }
  return sentences;
}

// Whether ours agree with float64, in every case of it that was measured.
Sentences answer_kernels(const Evidence& evidence, const std::vector<std::string>& passes,
                         const std::string& what) {
  const TableView table = evidence.table("attention", kRuns);
  size_t checked = 0, broken = 0;
  double wrong = 0;
  std::vector<std::string> names, masks, broken_masks;
  const auto note = [](const std::string& text, std::vector<std::string>& list) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
  };
  for (const size_t row : table.where({{"whose", "ours"}})) {
    const std::string pass = table.text(row, "pass");
    if (std::find(passes.begin(), passes.end(), pass) == passes.end()) continue;
    const double elements = table.number(row, "wrong");
    if (std::isnan(elements)) continue;
    ++checked;
    wrong += elements;
    note("`" + table.text(row, "contestant") + "`", names);
    note(table.text(row, "mask"), masks);
    if (elements == 0) continue;
    ++broken;
    note(table.text(row, "mask"), broken_masks);
  }
  if (checked == 0) return {};
  Sentences sentences;
  if (broken > 0) {
    sentences = {str("NOT right: ", fixed(wrong, 0), " elements in ", broken, " of ",
                     count_of(checked, "run"), " (mask: ", join(broken_masks),
                     ") are further from the formula in float64 than twice the formula's own error "
                     "in the same dtype.")};
  } else {
    sentences = {str("Right: in ", count_of(checked, "run"), " (", join(names),
                     "; mask: ", join(masks), ") no element of ", what,
                     " is further from the formula in float64 than twice "
                     "the formula's own error in the same dtype.")};
  }
  for (const char* mask : {"causal", "full"}) {
    if (std::find(masks.begin(), masks.end(), mask) == masks.end())
      sentences.push_back(str("No case with the mask ", mask, " was measured."));
  }
  return sentences;
}

Sentences answer_forward(const Evidence& evidence) {
  return answer_kernels(evidence, {"forward"}, "the output");
}
Sentences answer_backward(const Evidence& evidence) {
  return answer_kernels(evidence, {"backward", "both"}, "a gradient");
}

// "bf16 forward, causal, batch 4, heads 16"
std::string race_case(const TableView& table, size_t row) {
  const std::string heads = table.text(row, "H");
  return str(table.text(row, "dtype"), " ", table.text(row, "pass"), ", ", table.text(row, "mask"),
             ", batch ", table.text(row, "B"), heads.empty() ? "" : ", heads " + heads);
}

Sentences answer_race(const Evidence& evidence) {
  const TableView table = evidence.table("attention", kRace);
  std::vector<std::string> names;
  std::map<std::string, std::vector<size_t>> rows_of;
  for (size_t row = 0; row < table.rows(); ++row) {
    auto& rows = rows_of[race_case(table, row)];
    if (rows.empty()) names.push_back(race_case(table, row));
    rows.push_back(row);
  }
  Sentences sentences;
  for (const std::string& name : names) {
    std::vector<double> peers, naive;
    size_t without_room = 0;
    for (const size_t row : rows_of[name]) {
      const double ratio = table.number(row, "x best peer");
      if (ratio > 0) peers.push_back(ratio);
      const double formula = table.number(row, "naive") / table.number(row, "time");
      if (formula > 0) naive.push_back(formula);
      without_room += table.text(row, "naive") == "OOM";
    }
    if (peers.empty()) continue;
    std::string sentence =
        str(name, ": ours is ", speed_words(geometric(peers)), " the best peer (geometric mean of ",
            count_of(peers.size(), "case"), ", at least ",
            fixed(*std::min_element(peers.begin(), peers.end()), 2), ")");
    if (!naive.empty()) sentence += str(", ", speed_words(geometric(naive)), " the formula");
    if (without_room > 0)
      sentence += str("; the formula has no room for ", count_of(without_room, "case"));
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

Sentences answer_leaderboard(const Evidence& evidence) {
  const TableView table = evidence.table("leaderboard", kRace);
  const auto row = table.first({{"pass", "both"}});
  if (!row || std::isnan(table.number(*row, "time"))) return {};
  std::string sentence =
      str("Forward and backward (bf16, causal, 16 heads of 64, N ", table.text(*row, "N"),
          "): ", milliseconds(table.number(*row, "time")), " with `", table.text(*row, "ours"),
          "`, ", speed_words(table.number(*row, "x best peer")), " the best peer, ",
          table.text(*row, "best peer"), ".");
  const double chosen = table.number(*row, "auto");
  if (!std::isnan(chosen) && table.text(*row, "auto takes") != table.text(*row, "ours")) {
    sentence += str(" `auto` takes `", table.text(*row, "auto takes"),
                    "` there: ", milliseconds(chosen), ".");
  }
  return {sentence};
}

}  // namespace

void add_attention_questions(std::vector<Question>& questions) {
  const char* race = "`flashstep bench attention --preset handout`";
  const std::vector<Question> all = {
      {"pytorch_attention", "2025 2026", "attention_grid",
       "Time and memory of plain attention over lengths and head dims: where does memory run out, "
       "what does the smallest such case need, how does the memory kept for backward grow, and "
       "what "
       "would avoid it?",
       "`flashstep bench attention --preset grid`", answer_grid},
      {"torch_compile (a)", "2025 2026", "attention_grid",
       "What does compiling that formula change?",
       "Python's torch with a compiler on a GPU, for the contestant `compiled`",
       answer_compiled_attention},
      {"flash_forward", "2025 2026", "attention",
       "Attention in tiles, without the (N, N) matrix, with and without a causal mask: is it "
       "right?",
       race, answer_forward},
      {"flash_backward", "2025 2026", "attention",
       "Its backward pass, recomputing from the logsumexp: is it right?", race, answer_backward},
      {"flash_benchmarking", "2025 2026", "attention",
       "How fast are forward, backward and both, against the formula and others' kernels, over "
       "lengths, head dims and dtypes?",
       race, answer_race},
      {"leaderboard", "2025", "leaderboard",
       "Forward and backward of 16 causal heads of 64 at length 16,384 in bf16: how long?", "a GPU",
       answer_leaderboard},
      {"leaderboard", "2026", "leaderboard",
       "A training step of 34 layers, d_model 4,096, at length 32,768, on two GPUs: how long?",
       "fully sharded data parallelism, which flashstep does not have yet", nullptr},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
