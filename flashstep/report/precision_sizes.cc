// Error and speed of bf16 beside fp32, by size of the model.
#include <algorithm>
#include <array>
#include <cmath>

#include <torch/torch.h>

#include "flashstep/base/error.h"
#include "flashstep/base/signals.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/account_text.h"
#include "flashstep/report/precision.h"
#include "flashstep/report/workload.h"
#include "flashstep/train/cost.h"
#include "flashstep/train/precision.h"

namespace flashstep::report {
namespace {

using at::Tensor;

constexpr const char* kPrecisions[] = {"fp32", "bf16"};

struct Times {  // seconds, a value a pass
  std::vector<double> forward, backward;
};

struct SizeResult {
  std::string name;
  std::array<Times, 2> times;  // of kPrecisions
  double loss_error = 0, logits_error = 0, gradient_error = 0;
  std::string trouble;  // why there is nothing

  double median_ms(size_t precision, std::vector<double> Times::*part) const {
    return 1e3 * measure::median(times[precision].*part);
  }
  double gain(std::vector<double> Times::*part) const {
    return median_ms(0, part) / median_ms(1, part);
  }
};

Workload workload_of(const PrecisionSizesOptions& options, const std::string& size) {
  Workload workload;
  workload.model = model_by_name(size);
  workload.model.context_length = options.context_length;
  workload.model.attention = options.attention;
  workload.batch_size = options.batch_size;
  workload.mode = "forward-backward";
  workload.precision = "fp32";
  workload.device = options.device;
  return resolved_workload(workload);
}

// Weights, two sets of gradients, and what a pass in fp32 keeps for backward.
double needed_bytes(const Workload& workload) {
  const auto parameters = static_cast<double>(parameter_count(workload.model));
  const PassShape shape{.batch_size = workload.batch_size,
                        .seq_len = workload.model.context_length,
                        .naive_attention = workload.model.attention == "naive",
                        .fused_ops = workload.device == "cpu"};
  const train::StateBytes state = train::state_bytes(parameters);
  double kept =
      static_cast<double>(workload.model.num_layers) * block_saved_bytes(workload.model, shape);
  for (const SavedTensor& tensor : head_saved_tensors(workload.model, shape)) kept += tensor.bytes;
  return state.parameters + 2 * state.gradients + kept;
}

// One model, whose weights are float32 in either precision.
class Contest {
 public:
  explicit Contest(const Workload& workload) : run_(workload) {}

  // One pass; its times are recorded where `times` is given.
  double pass(size_t precision, Times* times) {
    run_.optimizer().zero_grad();
    synchronize(run_.device());
    const double begin = measure::steady_seconds();
    const Tensor loss = loss_of(run_.model(), run_.rows(), kPrecisions[precision]);
    synchronize(run_.device());
    const double middle = measure::steady_seconds();
    loss.backward();
    synchronize(run_.device());
    if (times != nullptr) {
      times->forward.push_back(middle - begin);
      times->backward.push_back(measure::steady_seconds() - middle);
    }
    return loss.item<double>();
  }

  void compare(SizeResult& result) {
    const double exact = pass(0, nullptr);
    std::vector<Tensor> gradients;  // taken, not copied: the next pass makes its own
    for (Tensor& parameter : run_.model().parameters()) {
      gradients.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
    result.loss_error = std::abs(pass(1, nullptr) - exact) / std::abs(exact);
    double difference = 0, norm = 0;
    size_t i = 0;
    for (const Tensor& parameter : run_.model().parameters()) {
      const Tensor& expected = gradients[i++];
      difference += square_sum(parameter.grad() - expected);
      norm += square_sum(expected);
    }
    result.gradient_error = std::sqrt(difference / norm);
    result.logits_error = logits_error();
  }

 private:
  static double square_sum(const Tensor& x) {
    return at::sum(x.square(), at::kDouble).item<double>();
  }

  double logits_error() {
    const at::NoGradGuard no_grad;
    const Tensor expected = run_.model().forward(run_.rows().inputs);
    const train::AutocastGuard autocast(run_.device().type(), at::kBFloat16);
    const Tensor logits = run_.model().forward(run_.rows().inputs).to(at::kFloat);
    return std::sqrt(square_sum(logits - expected) / square_sum(expected));
  }

  ModelRun run_;
};

void measure_into(SizeResult& result, const Workload& workload,
                  const PrecisionSizesOptions& options) {
  Contest contest(workload);
  contest.compare(result);
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    if (SignalGuard::received() != 0) return;
    for (size_t precision = 0; precision < 2; ++precision)
      contest.pass(precision, i < options.warmup ? nullptr : &result.times[precision]);
  }
}

SizeResult result_of(const Workload& workload, const PrecisionSizesOptions& options) {
  SizeResult result{.name = model_name(workload.model), .times = {}, .trouble = {}};
  const double needed = needed_bytes(workload);
  const auto available = static_cast<double>(measure::available_bytes());
  if (workload.device == "cpu" && available > 0 && needed > available) {
    // The kernel would kill: asked before, not after.
    result.trouble =
        str("needs ", number(needed / kGiB), " GiB, ", number(available / kGiB), " are free");
    return result;
  }
  try {
    measure_into(result, workload, options);
  } catch (const c10::OutOfMemoryError&) {
    result.trouble = str("out of memory (needs about ", number(needed / kGiB), " GiB)");
  }
  if (!result.trouble.empty() && workload.device == "cuda") measure::release_cached_gpu_memory();
  return result;
}

measure::Column error_column(const char* name) {
  return {name, "", measure::Align::kRight, {measure::NumberFormat::Style::kScientific, 1}};
}

measure::Table sizes_table(const std::vector<SizeResult>& results,
                           const PrecisionSizesOptions& options) {
  measure::Table table;
  table.title = str("bf16 (autocast) beside fp32: batch ", options.batch_size, ", context ",
                    options.context_length, ", ", options.device);
  table.columns = {measure::text_column("model"),
                   measure::number_column("fp32 forward", "ms", 2),
                   measure::number_column("fp32 backward", "ms", 2),
                   measure::number_column("bf16 forward", "ms", 2),
                   measure::number_column("bf16 backward", "ms", 2),
                   measure::number_column("gain forward", "x", 2),
                   measure::number_column("gain backward", "x", 2),
                   error_column("loss error"),
                   error_column("logits error"),
                   error_column("gradient error")};
  for (const SizeResult& r : results) {
    if (!r.trouble.empty() || r.times[1].forward.empty()) {
      std::vector<measure::Cell> row(table.columns.size());
      row[0] = r.name;
      row[1] = r.trouble.empty() ? "not measured" : r.trouble;
      table.add_row(std::move(row));
      continue;
    }
    table.add_row({r.name, r.median_ms(0, &Times::forward), r.median_ms(0, &Times::backward),
                   r.median_ms(1, &Times::forward), r.median_ms(1, &Times::backward),
                   r.gain(&Times::forward), r.gain(&Times::backward), r.loss_error, r.logits_error,
                   r.gradient_error});
  }
  return table;
}

measure::Table runs_table(const std::vector<SizeResult>& results) {
  measure::Table table;
  table.title = "bf16 beside fp32: all passes";
  table.columns = {measure::text_column("model"),
                   measure::text_column("precision"),
                   measure::text_column("pass"),
                   measure::integer_column("passes"),
                   measure::number_column("mean", "ms", 3),
                   measure::number_column("deviation", "ms", 3),
                   measure::number_column("median", "ms", 3),
                   measure::number_column("p10", "ms", 3),
                   measure::number_column("p90", "ms", 3)};
  const auto add = [&](const SizeResult& r, size_t precision, const char* pass,
                       const std::vector<double>& seconds) {
    if (seconds.empty()) return;
    const measure::Summary s = measure::summarize(seconds);
    table.add_row({r.name, kPrecisions[precision], pass, s.count, 1e3 * s.mean, 1e3 * s.stddev,
                   1e3 * s.median, 1e3 * s.p10, 1e3 * s.p90});
  };
  for (const SizeResult& r : results) {
    for (size_t precision = 0; precision < 2; ++precision) {
      add(r, precision, "forward", r.times[precision].forward);
      add(r, precision, "backward", r.times[precision].backward);
    }
  }
  return table;
}

std::vector<std::string> notes_of(const std::vector<SizeResult>& results,
                                  const PrecisionSizesOptions& options) {
  std::vector<std::string> notes = {str(
      "Weights are float32 in both; medians of ", options.steps, " passes after ", options.warmup,
      ", the two in turns, the host waiting after each pass. Errors: distance "
      "from fp32 at the same weights and tokens over fp32's size (loss: absolute values, logits "
      "and gradient: norms). ",
      measure::one_line(measure::describe_machine()), ".")};
  std::vector<const SizeResult*> measured;
  for (const SizeResult& r : results)
    if (r.trouble.empty() && !r.times[1].forward.empty()) measured.push_back(&r);
  if (measured.empty()) return notes;
  const auto gain = [](const SizeResult& r) {
    return (r.median_ms(0, &Times::forward) + r.median_ms(0, &Times::backward)) /
           (r.median_ms(1, &Times::forward) + r.median_ms(1, &Times::backward));
  };
  const double first = gain(*measured.front()), last = gain(*measured.back());
  std::string verdict = str("Verdict: forward and backward of ", measured.front()->name, " take ",
                            fixed(first, 2), " times less time in bf16");
  if (first < 1)
    verdict = str("Verdict: forward and backward of ", measured.front()->name, " take ",
                  fixed(1 / first, 2), " times MORE time in bf16");
  if (measured.size() > 1) {
    verdict += str("; of ", measured.back()->name, " fp32's time is ", fixed(last, 2),
                   " times bf16's: the gain ",
                   last > 1.05 * first   ? "grows"
                   : first > 1.05 * last ? "shrinks"
                                         : "stays",
                   " with the size");
  }
  notes.push_back(verdict + ".");
  return notes;
}

}  // namespace

BenchReport precision_sizes(const PrecisionSizesOptions& options) {
  require(!options.sizes.empty() && options.warmup >= 0 && options.steps >= 1,
          "[precision] expected a size, 0 warm-up passes or more and 1 timed one or more, got ",
          options.sizes.size(), ", ", options.warmup, " and ", options.steps);
  std::vector<Workload> workloads;  // all are checked before the first is measured
  for (const std::string& size : options.sizes) workloads.push_back(workload_of(options, size));
  BenchReport report;
  std::vector<SizeResult> results;
  for (const Workload& workload : workloads) {
    if ((report.signal = SignalGuard::received()) != 0) break;
    if (options.progress) options.progress(str("bf16 beside fp32: ", model_name(workload.model)));
    results.push_back(result_of(workload, options));
  }
  report.signal = SignalGuard::received();
  report.table = sizes_table(results, options);
  report.runs = runs_table(results);
  report.table.notes = notes_of(results, options);
  return report;
}

}  // namespace flashstep::report
