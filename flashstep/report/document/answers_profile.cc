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
const std::vector<std::string> kAttentionParts = {"model", "pass", "part", "time", "work", "rate"};
constexpr double kNotable = 0.03;  // of the forward pass

bool is_matrix_product(const std::string& work_class) { return work_class == "matmul"; }

// A fused kernel of attention holds matrix products too: without it naive attention, where they are
// kernels of their own, could not be compared with it.
bool holds_matrix_products(const std::string& work_class) {
  return is_matrix_product(work_class) || work_class == "attention";
}

// Time in which no kernel runs, or on a CPU no operator.
bool is_waiting(const std::string& work_class) {
  return work_class == "idle" || work_class == "host";
}

// "small, context 128, fp32, naive"
std::string profiled_case(const TableView& table, size_t row) {
  return str(table.text(row, "model"), ", context ", table.text(row, "context"), ", ",
             table.text(row, "precision"), ", ", table.text(row, "attention"));
}

bool same_case(const TableView& a, size_t row_of_a, const TableView& b, size_t row_of_b) {
  return profiled_case(a, row_of_a) == profiled_case(b, row_of_b) &&
         a.text(row_of_a, "mode") == b.text(row_of_b, "mode");
}

// Rows of each case, which stand together in every table.
std::vector<std::vector<size_t>> rows_by_case(const TableView& table) {
  std::vector<std::vector<size_t>> groups;
  for (size_t row = 0; row < table.rows(); ++row) {
    const bool same = !groups.empty() && same_case(table, groups.back().back(), table, row);
    if (!same) groups.emplace_back();
    groups.back().push_back(row);
  }
  return groups;
}

// Milliseconds of all kernels of a pass, in the case that `row` of `table` belongs to; NaN where
// they are not known.
double kernels_of_pass(const TableView& times, const TableView& table, size_t row,
                       const std::string& pass) {
  for (const size_t i : times.where({{"pass", pass}})) {
    if (same_case(times, i, table, row)) return times.number(i, "kernels");
  }
  return std::nan("");
}

// Milliseconds of a part of attention ("softmax": its kernels alone) in the forward pass of that
// case; NaN where they are not known.
double forward_part(const TableView& parts, const TableView& table, size_t row,
                    const std::string& name) {
  for (const size_t i : parts.where({{"pass", "forward"}, {"part", name}})) {
    if (same_case(parts, i, table, row)) return parts.number(i, "time");
  }
  return std::nan("");
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
    sentence +=
        "; where it is longer, kernels run beside each other (then the column busy is shorter than "
        "the column kernels) or the profiler slows them";
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

// "attention 5 %": classes with a notable part of inference of which no kernel is among `rows` of
// the kernels' table in the forward pass.
Sentences classes_left_out(const TableView& classes, const TableView& times,
                           const TableView& kernels, const std::vector<size_t>& rows) {
  const double all = kernels_of_pass(times, kernels, rows.front(), "inference, forward");
  Sentences left_out;
  for (const size_t row : classes.where({{"work", "inference"}})) {
    const std::string work_class = classes.text(row, "class");
    const double share = classes.number(row, "time") / all;
    if (!same_case(classes, row, kernels, rows.front()) || !(share >= kNotable)) continue;
    const bool listed = std::any_of(rows.begin(), rows.end(), [&](size_t kernel) {
      return kernels.text(kernel, "class") == work_class && kernels.number(kernel, "forward") > 0;
    });
    if (listed || is_matrix_product(work_class) || is_waiting(work_class)) continue;
    left_out.push_back(work_class + " " + percent(share));
  }
  return left_out;
}

Sentences answer_other_kernels(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kKernels);
  const TableView times = evidence.table("profile", kTimes);
  const TableView classes = evidence.table("profile", kClasses);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    double listed = 0;
    for (const size_t row : rows) {
      if (!is_waiting(table.text(row, "class")))
        listed += std::fmax(table.number(row, "forward"), 0);
    }
    const double whole = kernels_of_pass(times, table, rows.front(), "forward");
    const bool whole_known = whole > 0;
    const double all = whole_known ? whole : listed;
    if (!(all > 0)) continue;
    Sentences parts;
    for (const size_t row : rows) {
      const double share = table.number(row, "forward") / all;
      const std::string work_class = table.text(row, "class");
      if (is_matrix_product(work_class) || is_waiting(work_class) || !(share >= kNotable)) continue;
      parts.push_back(str("`", table.text(row, "kernel"), "` (", work_class, ") ", percent(share)));
    }
    std::string sentence = profiled_case(table, rows.front());
    sentence += parts.empty() ? ": no kernel of the table but the matrix products takes 3 %"
                              : ": beside the matrix products " + join(parts);
    sentence += whole_known ? " of the time in kernels of the forward pass"
                            : " of the time in the largest kernels of the forward pass";
    // The table lists the largest kernels of the step: one of the forward pass may be missing.
    const double rest = 1 - listed / all;
    if (rest >= kNotable)
      sentence += str("; kernels that the table leaves out take ", percent(rest), " together");
    const Sentences left_out = classes_left_out(classes, times, table, rows);
    if (!left_out.empty())
      sentence += "; whole classes that the table leaves out, in inference: " + join(left_out);
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

Sentences answer_shares(const Evidence& evidence) {
  const TableView table =
      evidence.table("profile", {"model", "class", "inference share", "step share", "change"});
  // Of inference and of the step, in percent.
  struct Shares {
    double before = 0, after = 0;
    void add(const Shares& other) {
      before += other.before;
      after += other.after;
    }
  };
  const auto shares_of = [&](size_t row) {
    return Shares{std::fmax(table.number(row, "inference share"), 0),
                  std::fmax(table.number(row, "step share"), 0)};
  };
  Sentences sentences;
  Tally tally;
  for (const auto& rows : rows_by_case(table)) {
    Shares products, kernels, idle;
    for (const size_t row : rows) {
      const std::string work_class = table.text(row, "class");
      if (work_class == "idle") idle.add(shares_of(row));
      if (!is_waiting(work_class)) kernels.add(shares_of(row));
      if (holds_matrix_products(work_class)) products.add(shares_of(row));
    }
    if (!(products.before > 0) || !(kernels.after > 0)) continue;
    std::string gains;
    double most_points = 0;
    for (const size_t row : rows) {
      const std::string work_class = table.text(row, "class");
      if (is_waiting(work_class) || holds_matrix_products(work_class)) continue;
      const Shares shares = shares_of(row);
      const double points = 100 * (shares.after / kernels.after - shares.before / kernels.before);
      if (points <= most_points) continue;
      most_points = points;
      gains = work_class;
    }
    const double before = products.before / kernels.before, after = products.after / kernels.after;
    tally.add(after, before);
    std::string sentence =
        str(profiled_case(table, rows.front()), ": matrix products and attention take ",
            percent(before, 1), " of the time in kernels of inference and ", percent(after, 1),
            " of that of a training step");
    if (idle.before + idle.after > 0) {
      sentence += str(", with the GPU idle for ", fixed(idle.before, 1), " % / ",
                      fixed(idle.after, 1), " % of the whole time");
    }
    if (!gains.empty())
      sentence += str("; ", gains, " gains most (", fixed(most_points, 1), " points)");
    sentences.push_back(sentence + ".");
  }
  if (tally.cases() == 0) return {};
  sentences.push_back(str("From inference to a training step their share of the time in kernels ",
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

// " Scale and mask take more than either: 48 % of attention's forward pass, softmax 11 %."; ""
// where that is not known.
std::string scale_and_mask(double scale, double softmax, double products) {
  const double all = scale + softmax + products;
  if (!(scale > 0)) return "";
  const bool largest = compare_measured(scale, std::fmax(softmax, products)) > 0;
  return str(" Scale and mask take ", largest ? "more than either: " : "", percent(scale / all),
             " of attention's forward pass, softmax ", percent(softmax / all), ".");
}

Sentences answer_softmax(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kAttentionParts);
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
        name, ": softmax alone (its kernels, without scale and mask) takes ", fixed(time, 2),
        " of the time of attention's matrix products for ", percent(work, 1), " of their FLOPs, ",
        compare_measured(time, work) > 0 ? three_digits(time / work) + " times the time a FLOP"
                                         : std::string("no more time a FLOP than they"),
        limit_of_softmax(classes, name), ".",
        scale_and_mask(forward_part(table, table, *softmax, "scale and mask"),
                       table.number(*softmax, "time"), table.number(*products, "time"))));
  }
  return sentences;
}

Sentences answer_calls(const Evidence& evidence) {
  const TableView table = evidence.table("profile", kKernels);
  const TableView times = evidence.table("profile", kTimes);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    Sentences parts;
    std::string without;
    for (const char* pass : {"forward", "backward", "optimizer"}) {
      const auto top = most(table, rows, pass);
      const double kernels = kernels_of_pass(times, table, rows.front(), pass);
      if (!top && kernels > 0) {
        without +=
            str("; no kernel of the ", pass, " is among the largest of the step (its kernels take ",
                milliseconds(kernels), " together)");
      }
      if (!top) continue;
      parts.push_back(str(pass, " `", table.text(*top, "kernel"), "` (",
                          milliseconds(table.number(*top, pass)), ")"));
    }
    if (!parts.empty())
      sentences.push_back(profiled_case(table, rows.front()) + ": most time takes, in " +
                          join(parts) + without + ".");
  }
  return sentences;
}

struct RangeTimes {  // milliseconds of the forward pass
  double norm = 0, softmax = 0, all = 0;
};

// Of the ranges whose innermost name is this one. A range holds what lies in it: only the outermost
// ones add up to the whole.
RangeTimes range_times(const TableView& ranges, const std::vector<size_t>& rows) {
  RangeTimes times;
  for (const size_t row : rows) {
    const std::string path = ranges.text(row, "range");
    const double time = std::fmax(ranges.number(row, "forward"), 0);
    const size_t last = path.rfind(" > ");
    const std::string name = last == std::string::npos ? path : path.substr(last + 3);
    if (last == std::string::npos) times.all += time;
    if (name == "norm") times.norm += time;
    if (name == "softmax") times.softmax += time;
  }
  return times;
}

Sentences answer_flame_graph(const Evidence& evidence) {
  const TableView table = evidence.table("profile", {"model", "range", "forward", "share"});
  const TableView parts = evidence.table("profile", kAttentionParts);
  Sentences sentences;
  for (const auto& rows : rows_by_case(table)) {
    const RangeTimes times = range_times(table, rows);
    if (!(times.norm > 0)) continue;
    std::string sentence = str(profiled_case(table, rows.front()), ": norms take ",
                               percent(times.norm / times.all, 1), " of the forward pass");
    if (times.softmax > 0) {
      const int order = compare_measured(times.softmax, times.norm);
      sentence += str(", the range softmax, which holds the mask too, ",
                      percent(times.softmax / times.all, 1), ": ",
                      order > 0    ? "that range is the larger part"
                      : order == 0 ? "both are as large"
                                   : "norms are the larger part");
    } else {
      sentence += "; softmax has no range of its own";
    }
    const double softmax = forward_part(parts, table, rows.front(), "softmax");
    const double scale = forward_part(parts, table, rows.front(), "scale and mask");
    if (softmax > 0) {
      sentence += str("; the kernels of softmax alone take ", percent(softmax / times.all, 1));
      if (scale > 0) sentence += str(", scale and mask ", percent(scale / times.all, 1));
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
