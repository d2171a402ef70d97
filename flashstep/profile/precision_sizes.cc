// Error and speed of bf16 beside fp32, by size of the model.
#include <cmath>

#include <torch/types.h>

#include "flashstep/amp.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/profile/precision.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

using at::Tensor;
using measure::number_column;

constexpr const char* kPrecisions[] = {"fp32", "bf16"};
constexpr const char* kPassNames[] = {"forward", "backward"};

// One model, whose weights are float32 in either precision.
class TwoPrecisions {
 public:
  explicit TwoPrecisions(const Workload& workload) : run_(workload) {}

  // One pass; its times are recorded where `record` is given.
  double pass(const std::string& precision, Record* record) {
    run_.optimizer().zero_grad();
    synchronize(run_.device());
    const double begin = measure::steady_seconds();
    const Tensor loss = loss_of(run_.model(), run_.rows(), precision);
    synchronize(run_.device());
    const double middle = measure::steady_seconds();
    loss.backward();
    synchronize(run_.device());
    if (record != nullptr) {
      record->samples[precision + " forward"].push_back(middle - begin);
      record->samples[precision + " backward"].push_back(measure::steady_seconds() - middle);
    }
    return loss.item<double>();
  }

  void compare(Record& record) {
    const double exact = pass("fp32", nullptr);
    std::vector<Tensor> gradients;  // taken, not copied: the next pass makes its own
    for (Tensor& parameter : run_.model().parameters()) {
      gradients.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
    record.facts["loss error"] = std::abs(pass("bf16", nullptr) - exact) / std::abs(exact);
    double difference = 0, norm = 0;
    size_t i = 0;
    for (const Tensor& parameter : run_.model().parameters()) {
      const Tensor& expected = gradients[i++];
      difference += square_sum(parameter.grad() - expected);
      norm += square_sum(expected);
    }
    record.facts["gradient error"] = std::sqrt(difference / norm);
    record.facts["logits error"] = logits_error();
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

// Puts samples "fp32 forward", "bf16 backward", ... (seconds, a value a pass) and the facts "loss
// error", "logits error" and "gradient error" into the record. A signal ends it: what there is, is
// shown.
void measure_into(Record& record, const Workload& workload, const PrecisionSizesOptions& options) {
  TwoPrecisions contest(workload);
  contest.compare(record);
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    for (const char* precision : kPrecisions) {
      if (SignalGuard::received() != 0) return;
      contest.pass(precision, i < options.warmup ? nullptr : &record);
    }
  }
}

// ---- Tables, sentences, pictures

// How many times as fast bf16 is.
double gain(const Record& r, const std::string& pass) {
  return r.median("fp32 " + pass) / r.median("bf16 " + pass);
}
double whole_gain(const Record& r) {
  return (r.median("fp32 forward") + r.median("fp32 backward")) /
         (r.median("bf16 forward") + r.median("bf16 backward"));
}
bool has_gain(const Record& r) { return std::isfinite(whole_gain(r)); }

Schema sizes_schema(const Records&) {
  Schema schema = {text_key("model")};
  for (const std::string precision : kPrecisions) {
    for (const char* pass : kPassNames) {
      const std::string name = precision + " " + pass;
      schema.push_back({number_column(name, "ms", 2), median(name, 1e3)});
    }
  }
  schema[1].cell = or_word(schema[1].cell);
  for (const std::string pass : kPassNames) {
    schema.push_back({number_column("gain " + pass, "x", 2),
                      finite([pass](const Record& r) { return gain(r, pass); })});
  }
  for (const char* name : {"loss error", "logits error", "gradient error"})
    schema.push_back({error_column(name), fact(name)});
  return schema;
}

measure::Table passes_table(const Records& records) {
  Records passes;  // a record each
  for (const Record& r : records) {
    for (const std::string precision : kPrecisions) {
      for (const char* pass : kPassNames) {
        const auto& seconds = r.series(precision + " " + pass);
        if (seconds.empty()) continue;
        passes.add({.key = {{"model", r.text("model")}, {"precision", precision}, {"pass", pass}},
                    .samples = {{"seconds", seconds}}});
      }
    }
  }
  return fill("bf16 beside fp32: all passes",
              {text_key("model"),
               text_key("precision"),
               text_key("pass"),
               {measure::integer_column("passes"), count("seconds")},
               {number_column("mean", "ms", 3), mean("seconds", 1e3)},
               {number_column("deviation", "ms", 3), deviation("seconds", 1e3)},
               {number_column("median", "ms", 3), median("seconds", 1e3)},
               {number_column("p10", "ms", 3), quantile("seconds", 0.1, 1e3)},
               {number_column("p90", "ms", 3), quantile("seconds", 0.9, 1e3)}},
              passes);
}

// How one model fares, and which way that goes with the size.
std::vector<std::string> gains(const Records& records) {
  const Records measured = records.where(has_gain);
  if (measured.empty()) return {};
  const Record &smallest = measured.all().front(), &largest = measured.all().back();
  const double first = whole_gain(smallest), last = whole_gain(largest);
  std::string sentence = str("Verdict: forward and backward of ", smallest.what);
  sentence += first >= 1 ? str(" are ", fixed(first, 2), " times as fast in bf16 as in fp32")
                         : str(" take ", fixed(1 / first, 2), " times as LONG in bf16 as in fp32");
  if (&largest != &smallest) {
    const char* way = last > 1.05 * first ? "grows" : first > 1.05 * last ? "shrinks" : "stays";
    sentence += str(", ", largest.what, " ", fixed(last, 2), " times as fast: the gain ", way,
                    " with the size");
  }
  return {sentence + "."};
}

std::vector<NamedPicture> gain_picture(const Records& records, const std::string& what) {
  Records points;  // of each pass
  for (const std::string pass : kPassNames) {
    for (const Record& r : records.where(has_gain))
      points.add({.implementation = pass,
                  .facts = {{"parameters", r.number("parameters")}, {"gain", gain(r, pass)}}});
  }
  if (points.all().size() < 4) return {};  // of one size
  const auto number = [](const char* name) {
    return [name](const Record& r) { return r.number(name); };
  };
  measure::Plot plot = lines(points, implementation_of, number("parameters"), number("gain"));
  plot.title = "bf16 (autocast) beside fp32";
  plot.subtitle = what;
  plot.x = {.label = "parameters", .scale = measure::Scale::kLog};
  plot.y.label = "fp32's time over bf16's";
  plot.references = {{1, "as fast", false}};
  return {{"gain", plot}};
}

}  // namespace

Benchmark sizes_benchmark(const PrecisionSizesOptions& options) {
  Benchmark benchmark;
  benchmark.command = "precision";
  const Workload& common = options.axes.common;
  const std::string what = str("batch ", common.batch_size, ", context ",
                               options.axes.contexts.front(), ", ", common.device);
  benchmark.title = "bf16 (autocast) beside fp32: " + what;
  benchmark.device = common.device;
  benchmark.schema = sizes_schema;
  benchmark.runs_table = passes_table;
  benchmark.how_to_read = {note("precision sizes")};
  benchmark.how = str("Medians of ", options.steps, " passes after ", options.warmup);
  benchmark.findings = gains;
  benchmark.pictures = [what](const Records& records) { return gain_picture(records, what); };
  return benchmark;
}

BenchReport precision_sizes(const PrecisionSizesOptions& options) {
  require(!options.axes.sizes.empty() && options.warmup >= 0 && options.steps >= 1,
          "[precision] expected a size, 0 warm-up passes or more and 1 timed one or more, got ",
          options.axes.sizes.size(), ", ", options.warmup, " and ", options.steps);
  const std::vector<Workload> workloads = workloads_of(options.axes);
  return run_benchmark(sizes_benchmark(options), options.progress, [&](Run& run) {
    for (size_t i = 0; i < workloads.size(); ++i) {
      const Workload& workload = workloads[i];
      const std::string name = model_name(workload.model);
      const auto parameters = static_cast<double>(parameter_count(workload.model));
      run.begin(i, workloads.size(), "bf16 beside fp32: " + name);
      Record record{.key = {{"model", name}}, .what = name, .facts = {{"parameters", parameters}}};
      // A second gradient beside what one pass needs.
      record.outcome = too_large_for_now(workload, state_bytes(parameters).gradients);
      if (record.outcome.measured())
        record.outcome = attempt([&] { measure_into(record, workload, options); });
      if (!record.outcome.measured()) record.drop_samples();
      if (workload.device == "cuda") measure::release_cached_gpu_memory();
      run.add(std::move(record));
    }
    check_interrupted("interrupted");
  });
}

}  // namespace flashstep::tools
