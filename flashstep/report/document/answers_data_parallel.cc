// Answers about averaging gradients: what data parallelism costs, and what hides it.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/document/question.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kDdpColumns = {"model",         "ranks",   "wrapper", "step",
                                              "communication", "exposed", "hidden",  "weights"};

// Weights differ by rounding alone below this share of the largest movement.
constexpr double kSameWeights = 2e-2;

// One case of the table: the rows of one model, context, precision and number of ranks.
struct Case {
  std::string name;
  std::vector<size_t> rows;
};

std::string ranks_case(const TableView& table, size_t row) {
  std::string name = table.text(row, "model") + ", " + table.text(row, "ranks") + " ranks";
  for (const char* column : {"context", "precision"}) {
    const std::string text = table.text(row, column);
    if (!text.empty()) name += std::string(", ") + (column[0] == 'c' ? "context " : "") + text;
  }
  return name;
}

std::vector<Case> cases_of(const TableView& table) {
  std::vector<Case> cases;
  for (size_t row = 0; row < table.rows(); ++row) {
    const std::string name = ranks_case(table, row);
    if (cases.empty() || cases.back().name != name) cases.push_back({name, {}});
    cases.back().rows.push_back(row);
  }
  return cases;
}

// The row of a wrapper that has a time; of "bucketed" the fastest bucket.
std::optional<size_t> row_of(const TableView& table, const Case& c, const std::string& wrapper) {
  std::optional<size_t> best;
  for (const size_t row : c.rows) {
    const std::string name = table.text(row, "wrapper");
    if (name != wrapper && name.rfind(wrapper + " ", 0) != 0) continue;
    const double step = table.number(row, "step");
    if (std::isnan(step)) continue;
    if (!best || step < table.number(*best, "step")) best = row;
  }
  return best;
}

// "from 52.1 to 48.0 ms (7.9 % shorter)"
std::string change(double from, double to) {
  const int order = compare_measured(to, from);
  const std::string words =
      order == 0 ? std::string("the same within 2 %")
                 : percent(std::abs(to / from - 1), 1) + (order < 0 ? " shorter" : " longer");
  return str("from ", three_digits(from), " to ", milliseconds(to), " (", words, ")");
}

// Whether the weights of these wrappers are a single process's.
Sentences weights_of(const Evidence& evidence, const std::vector<std::string>& wrappers) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  size_t compared = 0, wrong = 0;
  double worst = 0;
  for (const Case& c : cases_of(table)) {
    for (const size_t row : c.rows) {
      const std::string name = table.text(row, "wrapper");
      const bool is_one = std::any_of(wrappers.begin(), wrappers.end(), [&](const auto& wrapper) {
        return name == wrapper || name.rfind(wrapper + " ", 0) == 0;
      });
      if (!is_one || table.text(row, "weights").empty()) continue;
      const double error = table.number(row, "weights");
      ++compared;
      if (!(error <= kSameWeights)) ++wrong;
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
  }
  if (compared == 0) return {};
  const std::string runs = count_of(compared, "run");
  if (wrong > 0) {
    return {str("The weights are NOT those of a single process that took all ranks' rows in ",
                wrong, " of ", runs, ".")};
  }
  return {
      str("After some steps the weights are those of a single process that took all ranks' "
          "rows, in all of ",
          runs, worst == 0 ? ", bit for bit" : "", "; the largest difference is ",
          three_digits(worst), " of the largest movement of a weight.")};
}

Sentences answer_naive_weights(const Evidence& evidence) { return weights_of(evidence, {"naive"}); }
Sentences answer_overlap_weights(const Evidence& evidence) {
  return weights_of(evidence, {"overlapped"});
}
Sentences answer_bucket_weights(const Evidence& evidence) {
  return weights_of(evidence, {"bucketed"});
}

Sentences answer_naive(const Evidence& evidence) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  Sentences sentences;
  for (const Case& c : cases_of(table)) {
    const auto row = row_of(table, c, "naive");
    if (!row) continue;
    const double step = table.number(*row, "step");
    const double communication = table.number(*row, "communication");
    std::string sentence = str(c.name, ": ", milliseconds(step), " a step");
    if (!std::isnan(communication)) {
      sentence += str(", of which communication runs ", milliseconds(communication), ", ",
                      percent(communication / step));
    }
    if (const auto none = row_of(table, c, "none")) {
      const double alone = table.number(*none, "step");
      sentence +=
          str("; ranks that send nothing take ", milliseconds(alone), ", so that averaging ",
              compare_measured(step, alone) > 0 ? "adds " + percent(step / alone - 1, 1)
                                                : "adds nothing beyond 2 %");
    }
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

// The step of one wrapper beside that of another, whose name in words is `beside`.
Sentences compare(const Evidence& evidence, const std::string& from, const std::string& to,
                  const std::string& beside, const std::string& words) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  Sentences sentences;
  Tally steps, sent;
  for (const Case& c : cases_of(table)) {
    const auto a = row_of(table, c, from), b = row_of(table, c, to);
    if (!a || !b) continue;
    const double step_a = table.number(*a, "step"), step_b = table.number(*b, "step");
    std::string sentence = str(c.name, ": the step goes ", change(step_a, step_b));
    steps.add(step_b, step_a);
    const double sent_a = table.number(*a, "communication");
    const double sent_b = table.number(*b, "communication");
    if (!std::isnan(sent_a) && !std::isnan(sent_b)) {
      sentence += str(", communication ", change(sent_a, sent_b));
      sent.add(sent_b, sent_a);
    }
    sentences.push_back(sentence + ".");
  }
  if (steps.cases() == 0) return {};
  std::string verdict = str("Beside ", beside, " the step with ", words, " is ",
                            steps.words("shorter", "as long within 2 %", "longer"));
  if (sent.cases() > 0) {
    verdict +=
        str("; communication itself is ", sent.words("shorter", "as long within 2 %", "longer"));
  }
  sentences.push_back(verdict + ".");
  return sentences;
}

Sentences answer_flat(const Evidence& evidence) {
  return compare(evidence, "naive", "flat", "one call for each gradient", "one call for all");
}

Sentences answer_overlap(const Evidence& evidence) {
  const char* overlapped = "each gradient sent as soon as it is there";
  Sentences sentences =
      compare(evidence, "naive", "overlapped", "sending each at the end", overlapped);
  for (const std::string& sentence :
       compare(evidence, "flat", "overlapped", "one flat call at the end", overlapped)) {
    sentences.push_back(sentence);
  }
  return sentences;
}

Sentences answer_traces(const Evidence& evidence) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  Sentences sentences;
  for (const Case& c : cases_of(table)) {
    const auto naive = row_of(table, c, "naive"), overlapped = row_of(table, c, "overlapped");
    if (!naive || !overlapped) continue;
    const double before = table.number(*naive, "hidden"),
                 after = table.number(*overlapped, "hidden");
    if (std::isnan(before) || std::isnan(after)) continue;
    sentences.push_back(
        str(c.name, ": of naive's communication ", fixed(before, 1),
            " % has computing beside it, of overlapped's ", fixed(after, 1), " %: ",
            after > before + 5 ? "backward and communication overlap" : "they do not overlap more",
            " (the picture's lanes)."));
  }
  return sentences;
}

double bucket_size(const std::string& wrapper) {
  const size_t at = wrapper.find(' ');
  return at == std::string::npos ? NAN : std::strtod(wrapper.c_str() + at, nullptr);
}

// Fastest and slowest bucket of a case, beside one message for each gradient.
Sentences answer_buckets(const Evidence& evidence) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  Sentences sentences;
  for (const Case& c : cases_of(table)) {
    std::optional<size_t> best, worst;
    size_t sizes = 0;
    for (const size_t row : c.rows) {
      if (table.text(row, "wrapper").rfind("bucketed ", 0) != 0) continue;
      const double step = table.number(row, "step");
      if (std::isnan(step)) continue;
      ++sizes;
      if (!best || step < table.number(*best, "step")) best = row;
      if (!worst || step > table.number(*worst, "step")) worst = row;
    }
    if (sizes < 2) continue;
    const double fast = table.number(*best, "step"), slow = table.number(*worst, "step");
    const bool same = compare_measured(fast, slow) == 0;
    std::string sentence =
        str(c.name, ": buckets of ", three_digits(bucket_size(table.text(*best, "wrapper"))),
            " MB are the fastest (", milliseconds(fast), "), of ",
            three_digits(bucket_size(table.text(*worst, "wrapper"))), " MB the slowest (",
            milliseconds(slow), ", ",
            same ? "the same within 2 %" : percent(slow / fast - 1, 1) + " longer", ")");
    if (const auto single = row_of(table, c, "overlapped")) {
      const double step = table.number(*single, "step");
      const int order = compare_measured(fast, step);
      sentence += str("; a message for each gradient takes ", milliseconds(step), ", ",
                      order < 0    ? "so that buckets pay"
                      : order == 0 ? "as long as they within 2 %"
                                   : "so that buckets do not pay here");
    }
    sentences.push_back(sentence + ".");
  }
  return sentences;
}

// Bandwidth (bytes/s) and fixed cost (s) of a sum over two ranks on the device that ddp used.
struct LinkAnswer {
  double bandwidth = NAN, overhead = NAN;
};
LinkAnswer link_of(const Evidence& evidence, const std::string& backend) {
  const TableView table =
      evidence.table("allreduce", {"backend", "ranks", "size", "time", "algorithm", "alone"});
  LinkAnswer link;
  double least_size = INFINITY;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "backend") != backend || table.text(row, "ranks") != "2") continue;
    const double rate = table.number(row, "algorithm") * 1e9,
                 size = table.number(row, "size") * 1e6;
    if (std::isnan(rate)) continue;
    link.bandwidth = std::fmax(link.bandwidth, rate);
    if (size >= least_size) continue;
    least_size = size;
    // What of the smallest message's time its bytes do not explain.
    link.overhead = table.number(row, "alone") / 1e3;
  }
  if (std::isfinite(least_size))
    link.overhead = std::max(link.overhead - least_size / link.bandwidth, 0.0);
  return link;
}

// Bytes of all gradients of a model by its name; NaN for a name that is none.
double gradient_bytes(const std::string& model) {
  try {
    ModelConfig config = model_by_name(model);
    config.context_length = 1;  // RoPE has no parameters: any will do
    return 4.0 * static_cast<double>(parameter_count(resolved(config)));
  } catch (const UserError&) {
    return NAN;
  }
}

Sentences answer_bucket_model(const Evidence& evidence) {
  const TableView table = evidence.table("ddp", kDdpColumns);
  const std::string backend = table && table.text(0, "device") == "cuda" ? "nccl" : "gloo";
  const LinkAnswer link = link_of(evidence, backend);
  if (!table || !std::isfinite(link.bandwidth)) return {};
  Sentences sentences = {
      "With s bytes of gradients in n buckets, w bytes/s and o seconds a call, all but the last "
      "bucket hide behind backward: overhead = s / (n w) + n o. Its derivative by n vanishes at n "
      "= sqrt(s / (w o)): buckets of s / n = sqrt(s w o) bytes.",
      str("Measured with ", backend, " between 2 ranks: w = ", three_digits(link.bandwidth / 1e9),
          " GB/s, o = ", three_digits(link.overhead * 1e6), " us.")};
  if (!(link.overhead > 0)) {
    sentences.emplace_back(
        "A call costs nothing there beyond its bytes, as far as these sizes tell: the model asks "
        "for "
        "the smallest buckets.");
    return sentences;
  }
  for (const Case& c : cases_of(table)) {
    const double bytes = gradient_bytes(table.text(c.rows.front(), "model"));
    const auto best = row_of(table, c, "bucketed");
    if (!best || std::isnan(bytes)) continue;
    const double model_mb = std::sqrt(bytes * link.bandwidth * link.overhead) / 1e6;
    const double measured_mb = bucket_size(table.text(*best, "wrapper"));
    const bool near = measured_mb < 4 * model_mb && model_mb < 4 * measured_mb;
    sentences.push_back(str(c.name, ": s = ", three_digits(bytes / 1e9), " GB makes buckets of ",
                            three_digits(model_mb), " MB; the fastest of those measured is ",
                            three_digits(measured_mb), " MB: ",
                            near ? "within a factor of four, as near as such a model comes."
                                 : "the model, which knows neither copies nor other work on the "
                                   "same cores and links, is off."));
  }
  return sentences;
}

}  // namespace

void add_data_parallel_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep bench ddp`";
  const std::vector<Question> all = {
      {"naive_ddp", "2024 2025 2026", "ddp",
       "Train with each gradient all-reduced after backward: are the weights a single process's?",
       needs, answer_naive_weights},
      {"naive_ddp_benchmarking", "2024 2025 2026", "ddp",
       "How long is a training step then, and which part of it is communication?", needs,
       answer_naive},
      {"minimal_ddp_flat_benchmarking", "2024 2025 2026", "ddp",
       "What does one all-reduce of all gradients, flattened, change against one for each?", needs,
       answer_flat},
      {"ddp_overlap_individual_parameters", "2024 2025 2026", "ddp",
       "A wrapper that sends each gradient while backward still runs: are the weights right?",
       needs, answer_overlap_weights},
      {"ddp_overlap_individual_parameters_benchmarking (a)", "2024 2025 2026", "ddp",
       "How long is a step with it, beside the naive one and the flat one?", needs, answer_overlap},
      {"ddp_overlap_individual_parameters_benchmarking (b)", "2024 2025 2026", "ddp",
       "Does a trace show communication beside backward, with it and without?",
       "a step under the profiler (`flashstep bench ddp`)", answer_traces},
      {"ddp_overlap_bucketed", "2024 2025", "ddp",
       "A wrapper that sends gradients in buckets: are the weights right?", needs,
       answer_bucket_weights},
      {"ddp_bucketed_benchmarking (a)", "2024 2025", "ddp",
       "How does the size of buckets change the step, and does that agree with what one expects?",
       needs, answer_buckets},
      {"ddp_bucketed_benchmarking (b)", "2024 2025", "ddp",
       "Model the overhead by bytes, bandwidth and the cost of a call: which bucket is best?",
       "`flashstep bench ddp` and `flashstep bench allreduce`", answer_bucket_model},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
