// Answers about where the time of a step goes.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kTimes = {"model", "pass",    "timer",
                                         "range", "kernels", "kernels / timer"};
const std::vector<std::string> kClasses = {"model", "work",       "class",   "time",
                                           "limit", "limited by", "of limit"};
const std::vector<std::string> kKernels = {"model",         "kernel",   "class",  "forward",
                                           "forward calls", "backward", "in all", "share"};
constexpr double kNotable = 0.03;  // of the forward pass

bool is_product(const std::string& work_class) {
  return work_class == "matmul" || work_class == "attention";
}

// "small, context 128, fp32, naive"
std::string profiled_case(const TableView& table, size_t row) {
  return str(table.text(row, "model"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "precision"), ", ", table.text(row, "attention"));
}

// Rows of each case, which stand together in every table.
std::vector<std::vector<size_t>> rows_by_case(const TableView& table) {
  std::vector<std::vector<size_t>> groups;
  for (size_t row = 0; row < table.rows(); ++row) {
    const bool same = !groups.empty() &&
                      profiled_case(table, groups.back().back()) == profiled_case(table, row) &&
                      table.text(groups.back().back(), "mode") == table.text(row, "mode");
    if (!same) groups.emplace_back();
    groups.back().push_back(row);
  }
  return groups;
}

Sentences answer_timer(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kTimes);
  Sentences sentences;
  Tally tally;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "pass").find("forward") == std::string::npos) continue;
    const double timer = table.number(row, "timer"), kernels = table.number(row, "kernels");
    if (std::isnan(timer) || std::isnan(kernels)) continue;
    tally.add(kernels, timer);
    sentences.push_back(str(profiled_case(table, row), ", ", table.text(row, "pass"), ": ",
                            milliseconds(timer), " by the timer, ", milliseconds(kernels),
                            " in kernels (", percent(kernels / timer), ")."));
  }
  if (tally.cases() == 0) return {};
  std::string sentence = str("Beside the timer's time the kernels' is ",
                             tally.words("shorter", "the same within 2 %", "longer"));
  if (tally.less() > 0) sentence += "; where it is shorter, there are times without a kernel";
  if (tally.more() > 0)
    sentence += "; where it is longer, kernels run beside each other or the profiler slows them";
  if (tally.less() + tally.more() > 0) sentence += ", unless the timed and the traced steps differ";
  sentences.push_back(sentence + ".");
  return sentences;
}

std::optional<size_t> most(const TableView& table, const std::vector<size_t>& rows,
                           const std::string& column) {
  std::optional<size_t> best;
  for (const size_t row : rows) {
    const double value = table.number(row, column);
    if (std::isnan(value)) continue;
    if (!best || value > table.number(*best, column)) best = row;
  }
  return best;
}

Sentences answer_top_kernel(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kKernels);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    const auto forward = most(table, rows, "forward"), all = most(table, rows, "in all");
    if (!forward || !all) continue;
    sentences.push_back(
        str(profiled_case(table, *forward), ": `", table.text(*forward, "kernel"),
            "` takes most of the forward pass, ", milliseconds(table.number(*forward, "forward")),
            " in ", table.text(*forward, "forward calls"), " calls; of the whole step ",
            *forward == *all ? std::string("it is the same one")
                             : "it is another one, `" + table.text(*all, "kernel") + "`",
            " (", milliseconds(table.number(*all, "in all")), ")."));
  }
  return sentences;
}

Sentences answer_other_kernels(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kKernels);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    double all = 0;
    for (const size_t row : rows) all += std::fmax(table.number(row, "forward"), 0);
    Sentences parts;
    for (const size_t row : rows) {
      const double share = table.number(row, "forward") / all;
      if (is_product(table.text(row, "class")) || !(share >= kNotable)) continue;
      parts.push_back(str("`", table.text(row, "kernel"), "` (", table.text(row, "class"), ") ",
                          percent(share)));
    }
    if (!(all > 0)) continue;
    sentences.push_back(str(profiled_case(table, rows.front()), ": ",
                            parts.empty()
                                ? "no kernel but the matrix products takes 3 % of the time in the "
                                  "largest kernels of the forward pass"
                                : "beside the matrix products " + join(parts) +
                                      " of the time in the largest kernels of the forward pass",
                            "."));
  }
  return sentences;
}

Sentences answer_shares(const Evidence& evidence) {
  const TableView table =
      evidence.table("profile", {"model", "class", "inference share", "step share", "change"});
  Sentences sentences;
  Tally tally;
  for (const auto& rows : rows_by_case(table)) {
    double before = 0, after = 0;
    std::optional<size_t> gains;
    for (const size_t row : rows) {
      if (is_product(table.text(row, "class"))) {
        before += std::fmax(table.number(row, "inference share"), 0);
        after += std::fmax(table.number(row, "step share"), 0);
      } else if (!gains || table.number(row, "change") > table.number(*gains, "change")) {
        gains = row;
      }
    }
    if (!(before > 0)) continue;
    tally.add(after, before);
    std::string sentence =
        str(profiled_case(table, rows.front()), ": matrix products and attention take ",
            fixed(before, 1), " % of inference and ", fixed(after, 1), " % of a training step");
    if (gains && table.number(*gains, "change") > 0) {
      sentence += str("; ", table.text(*gains, "class"), " gains most (",
                      fixed(table.number(*gains, "change"), 1), " points)");
    }
    sentences.push_back(sentence + ".");
  }
  if (tally.cases() == 0) return {};
  sentences.push_back(str("From inference to a training step their share ",
                          tally.words("falls", "stays within 2 % of itself", "rises"), "."));
  return sentences;
}

// "; its limit is memory, of which it reaches 78 %": of the class in inference, or else in the
// step.
std::string limit_of_softmax(const TableView& classes, const std::string& profiled) {
  for (const size_t row : classes.where({{"class", "softmax"}})) {
    const double reached = classes.number(row, "of limit");
    if (profiled_case(classes, row) != profiled || std::isnan(reached)) continue;
    return str("; its limit is ", classes.text(row, "limited by"), ", of which it reaches ",
               fixed(reached, 0), " %");
  }
  return "";
}

Sentences answer_softmax(const Evidence& evidence) {
  const TableView table =
      evidence.table("profile", {"model", "pass", "part", "time", "work", "rate"});
  const TableView classes = evidence.table("profile", kClasses);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    const auto part = [&](const char* name) -> std::optional<size_t> {
      for (const size_t row : rows) {
        if (table.text(row, "pass") == "forward" && table.text(row, "part") == name) return row;
      }
      return std::nullopt;
    };
    const auto softmax = part("softmax"), products = part("matrix products");
    if (!softmax || !products) continue;
    const double time = table.number(*softmax, "time") / table.number(*products, "time");
    const double work = table.number(*softmax, "work") / table.number(*products, "work");
    if (!(time > 0) || !(work > 0)) continue;
    const std::string name = profiled_case(table, *softmax);
    sentences.push_back(str(
        name, ": softmax takes ", fixed(time, 2),
        " of the time of attention's matrix products for ", percent(work, 1), " of their FLOPs, ",
        compare_measured(time, work) > 0 ? three_digits(time / work) + " times the time a FLOP"
                                         : std::string("no more time a FLOP than they"),
        limit_of_softmax(classes, name), "."));
  }
  return sentences;
}

Sentences answer_calls(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kKernels);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    Sentences parts;
    for (const char* pass : {"forward", "backward", "optimizer"}) {
      const auto top = most(table, rows, pass);
      if (!top) continue;
      parts.push_back(str(pass, " `", table.text(*top, "kernel"), "` (",
                          milliseconds(table.number(*top, pass)), ")"));
    }
    if (!parts.empty())
      sentences.push_back(profiled_case(table, rows.front()) + ": most time takes, in " +
                          join(parts) + ".");
  }
  return sentences;
}

// Forward milliseconds of the ranges whose innermost name is this one, over all of the pass. A
// range holds what lies in it: only the outermost ones add up to the whole.
double range_share(const TableView& ranges, const std::vector<size_t>& rows,
                   const std::string& name) {
  double part = 0, all = 0;
  for (const size_t row : rows) {
    const std::string path = ranges.text(row, "range");
    const double time = std::fmax(ranges.number(row, "forward"), 0);
    const size_t last = path.rfind(" > ");
    if (last == std::string::npos) all += time;
    if ((last == std::string::npos ? path : path.substr(last + 3)) == name) part += time;
  }
  return part / all;
}

Sentences answer_flame_graph(const Evidence& evidence) {
  const TableView table = evidence.table("profile", {"model", "range", "forward", "share"});
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    const double norm = range_share(table, rows, "norm");
    const double softmax = range_share(table, rows, "softmax");
    if (!(norm > 0)) continue;
    std::string sentence = str(profiled_case(table, rows.front()), ": norms take ",
                               percent(norm, 1), " of the forward pass");
    if (softmax > 0) {
      const int order = compare_measured(softmax, norm);
      sentence += str(", softmax ", percent(softmax, 1), ": ",
                      order > 0    ? "softmax is the larger part"
                      : order == 0 ? "both are as large"
                                   : "norms are the larger part");
    }
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

}  // namespace

void add_profile_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep profile`";
  const char* years = "2025 2026";
  const std::vector<Question> all = {
      {"nsys_profile (a)", years, "profile",
       "How long is the forward pass in the trace, and does it agree with the timer?", needs,
       answer_timer},
      {"nsys_profile (b)", years, "profile",
       "Which kernel takes most of the forward pass, in how many calls, and is it the same for the "
       "whole step?",
       needs, answer_top_kernel},
      {"nsys_profile (c)", years, "profile",
       "Which kernels beside matrix products take a notable part of the forward pass?", needs,
       answer_other_kernels},
      {"nsys_profile (d)", years, "profile",
       "How does the share of matrix products change from inference to a whole training step with "
       "AdamW?",
       needs, answer_shares},
      {"nsys_profile (e)", years, "profile",
       "Softmax beside the matrix products of attention, in time and in FLOPs?",
       "`flashstep profile --attention naive`", answer_softmax},
      {"function_call_table", "2024", "profile",
       "Which functions take most of forward, backward and optimizer?", needs, answer_calls},
      {"flame_graph", "2024", "profile",
       "A flame graph of the forward pass: which part of it are norms, which is softmax?", needs,
       answer_flame_graph},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
