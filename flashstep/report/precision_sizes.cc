// Error and speed of bf16 beside fp32, by size of the model.
#include "flashstep/report/precision_sizes.h"

#include <cmath>

#include <torch/types.h>

#include "flashstep/amp.h"
#include "flashstep/base/signals.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/account_text.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/model_run.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

using at::Tensor;

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
double bytes_of_training(const Workload& workload) {
  const auto parameters = static_cast<double>(parameter_count(workload.model));
  const PassShape shape{.batch_size = workload.batch_size,
                        .seq_len = workload.model.context_length,
                        .naive_attention = workload.model.attention == "naive",
                        .on_gpu = workload.device == "cuda"};
  const StateBytes state = state_bytes(parameters);
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
  double pass(size_t precision, PrecisionTimes* times) {
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
    const AutocastGuard autocast(run_.device().type(), at::kBFloat16);
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

// Into `result`, which is among those shown even if the machine fails here.
void measure_or_say_why(SizeResult& result, const Workload& workload, const MeasureSize& measure,
                        const PrecisionSizesOptions& options) {
  const double needed = bytes_of_training(workload);
  const auto available = static_cast<double>(measure::available_bytes());
  if (workload.device == "cpu" && available > 0 && needed > available) {
    // The kernel would kill: asked before, not after.
    result.failure =
        str("needs ", number(needed / kGiB), " GiB, ", number(available / kGiB), " are free");
    return;
  }
  // What has failed has no times, whatever was measured of it.
  const auto give_up = [&](const std::string& why) {
    result = {.name = result.name, .parameters = result.parameters, .failure = why};
  };
  const std::string no_memory = str("out of memory (needs about ", number(needed / kGiB), " GiB)");
  try {
    measure(result, workload, options);
  } catch (...) {
    const Outcome outcome = outcome_of(std::current_exception());
    if (workload.device == "cuda") measure::release_cached_gpu_memory();
    if (outcome.status == Status::kRefused) throw;
    give_up(outcome.failed() ? outcome.sentence() : no_memory);
    if (outcome.failed())
      throw MachineError(str("[precision] ", result.name, " ", outcome.sentence()));
  }
}

}  // namespace

BenchReport precision_sizes(const PrecisionSizesOptions& options) {
  return precision_sizes_by(measure_into, options);
}

BenchReport precision_sizes_by(const MeasureSize& measure, const PrecisionSizesOptions& options) {
  require(!options.sizes.empty() && options.warmup >= 0 && options.steps >= 1,
          "[precision] expected a size, 0 warm-up passes or more and 1 timed one or more, got ",
          options.sizes.size(), ", ", options.warmup, " and ", options.steps);
  std::vector<Workload> workloads;  // all are checked before the first is measured
  for (const std::string& size : options.sizes) workloads.push_back(workload_of(options, size));
  std::vector<SizeResult> results;
  BenchReport ended;
  measure_until_failure(ended, [&] {
    for (const Workload& workload : workloads) {
      if (SignalGuard::received() != 0) break;
      if (options.progress) options.progress(str("bf16 beside fp32: ", model_name(workload.model)));
      results.push_back({.name = model_name(workload.model),
                         .parameters = static_cast<double>(parameter_count(workload.model))});
      measure_or_say_why(results.back(), workload, measure, options);
    }
  });
  BenchReport report = precision_sizes_report(results, options);
  report.failure = ended.failure;
  report.signal = SignalGuard::received();
  if (report.signal != 0)
    report.table.notes.emplace_back("Interrupted: the rest was not measured.");
  return report;
}

}  // namespace flashstep::report
