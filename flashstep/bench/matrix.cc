// Training with every attention under every wrapper.
#include "flashstep/bench/matrix.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/base/heap.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/replica.h"
#include "flashstep/bench/schema.h"
#include "flashstep/data.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/model.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/parallelize.h"

namespace flashstep::tools {
namespace {

constexpr uint64_t kMatrixSeed = 1;
constexpr double kClipNorm = 1;

// The parts of an implementation's name.
std::string attention_of(const std::string& implementation) {
  return implementation.substr(0, implementation.find(' '));
}
std::string wrapper_of(const std::string& implementation) {
  return implementation.substr(implementation.find(' ') + 1);
}

// For readers, once the size of the buckets is known.
std::string wrapper_name(const Record& r) {
  return shown_name(wrapper_of(r.implementation), r.number("bucket_megabytes"));
}

double tokens_per_second(const Record& r) { return r.number("tokens") / r.median("steps"); }

double speed_up(const Record& r, const Records& all) {
  for (const Record& other : all) {
    if (other.text("attention") == r.text("attention") &&
        wrapper_of(other.implementation) == "none")
      return tokens_per_second(r) / tokens_per_second(other);
  }
  return NAN;
}

Schema matrix_schema() {
  using measure::number_column;
  const ValueOf epoch = [](const Record& r) { return r.median("steps") * r.number("epoch steps"); };
  const CellOf last_loss = [](const Record& r, const Records&) {
    return r.has("validation loss") ? measure::Cell(r.series("validation loss").back())
                                    : measure::Cell();
  };
  return {text_key("attention"),
          {measure::text_column("wrapper"), words(wrapper_name)},
          integer_key("ranks"),
          {number_column("step", "ms", 2), or_word(median("steps", 1e3))},
          {number_column("p10", "ms", 2), quantile("steps", 0.1, 1e3)},
          {number_column("p90", "ms", 2), quantile("steps", 0.9, 1e3)},
          {number_column("epoch", "s", 2), finite(epoch)},
          {number_column("tokens", "1/s", 0), finite(rate("tokens", "steps"))},
          {number_column("speed-up", "", 2), finite(speed_up)},
          {number_column("peak memory", "GiB", 3), fact("peak_bytes", 1 / kGiB)},
          {number_column("validation loss", "nats", 4), last_loss}};
}

std::vector<NamedPicture> matrix_pictures(const Records& records, const std::string& subtitle) {
  std::vector<NamedPicture> pictures;
  const auto add = [&](const char* name, const char* title, auto picture) {
    pictures.push_back(named_picture(name, std::move(picture), title, subtitle));
  };
  const auto add_bars = [&](const char* name, const char* title, const char* unit,
                            const ValueOf& value) {
    measure::Plot plot = bars(records, wrapper_name, text_of("attention"), value);
    plot.y.label = unit;
    add(name, title, std::move(plot));
  };
  add_bars("time", "Time of a training step", "ms", median_of("steps", 1e3));
  add_bars("memory", "Peak memory", "GiB",
           [](const Record& r) { return r.number("peak_bytes") / kGiB; });
  add_bars("throughput", "Tokens a second, all ranks", "tokens/s", tokens_per_second);
  measure::HeatMap map = heat_map(records, wrapper_name, text_of("attention"),
                                  [&](const Record& r) { return speed_up(r, records); });
  map.x_label = "wrapper";
  map.y_label = "attention";
  add("speedup", "Speed-up by wrapper", std::move(map));
  return pictures;
}

struct Tokens {
  TokenFile train, validation;
};

// One cell: a training run of its own.
class Training {
 public:
  Training(const MatrixPlan& plan, const std::string& implementation, const Tokens& tokens,
           Group& group, at::Device device)
      : plan_(plan),
        tokens_(tokens),
        group_(group),
        device_(device),
        model_(make_model(with_attention(attention_of(implementation)), kMatrixSeed, device)),
        batches_(tokens.train, batch_options()) {
    const ParallelConfig division = division_by_name(wrapper_of(implementation));
    Group* parallel = wrapper_of(implementation) == "none" ? nullptr : &group;
    parallel_ = parallelize(*model_, division, parallel);
    optimizer_ =
        make_optimizer(*model_, torch::optim::AdamWOptions(plan.learning_rate).betas({0.9, 0.95}),
                       division, *parallel_);
    step_ = std::make_unique<TrainStep>(
        model_->parameters(), *optimizer_,
        [this](int64_t step, int64_t micro_step) {
          const Batch batch = batches_.at(step, micro_step, device_.is_cuda());
          return model_->loss(batch.inputs.to(device_, /*non_blocking=*/true),
                              batch.targets.to(device_, /*non_blocking=*/true));
        },
        StepOptions{.max_norm = kClipNorm, .precision = precision_by_name(plan.c.precision)},
        parallel_);
  }

  void run(Record& record) {
    reset_peak_memory(device_);
    const int64_t whole = steps_in_epoch();
    const int64_t steps = plan_.most_steps > 0 ? std::min(whole, plan_.most_steps) : whole;
    for (int64_t epoch = 0; epoch < plan_.epochs; ++epoch) {
      group_.barrier("beginning an epoch");
      const auto train = [&](int64_t step) { step_->run(step); };
      for (const double seconds : seconds_of_calls(train, device_, epoch * whole, steps, 1))
        record.samples["steps"].push_back(seconds);
      // The parameters are the same on every rank.
      if (group_.is_first()) record.samples["validation loss"].push_back(validate());
      group_.barrier("waiting for rank 0 to evaluate", std::chrono::hours(1));
    }
    record.facts["peak_bytes"] = group_.all_reduce(peak_memory_bytes(device_), Reduce::kMax);
    record.facts["epoch steps"] = static_cast<double>(whole);
    const GradientReducer* reducer = parallel_->reducer();
    record.facts["bucket_megabytes"] = reducer ? reducer->options().bucket_megabytes : 0;
    record.facts["tokens"] = static_cast<double>(plan_.c.batch_size * plan_.c.model.context_length *
                                                 group_.world_size());
  }

 private:
  ModelConfig with_attention(const std::string& attention) const {
    ModelConfig model = plan_.c.model;
    model.attention = attention;
    return model;
  }

  BatchOptions batch_options() const {
    return {.batch_size = plan_.c.batch_size,
            .context_length = plan_.c.model.context_length,
            .seed = kMatrixSeed,
            .order = Order::kEpoch,
            .rank = group_.rank(),
            .world_size = group_.world_size()};
  }

  // Whole steps: rows that do not fill one belong to the next epoch.
  int64_t steps_in_epoch() const {
    const auto windows = static_cast<int64_t>(batches_.order().windows());
    const int64_t steps = windows / (plan_.c.batch_size * group_.world_size());
    require(steps > 0, "[bench matrix] expected tokens for a step of ", group_.world_size(), " x ",
            plan_.c.batch_size, " rows of ", plan_.c.model.context_length, ", got ", windows,
            " rows");
    return steps;
  }

  double validate() {
    EvaluateOptions options;
    options.batch_size = plan_.c.batch_size;
    options.context_length = plan_.c.model.context_length;
    options.max_tokens = static_cast<uint64_t>(plan_.validation_tokens);
    options.device = device_;
    options.precision = precision_by_name(plan_.c.precision);
    model_->eval();
    const double loss =
        evaluate_loss([&](const at::Tensor& ids,
                          const at::Tensor& targets) { return model_->loss(ids, targets); },
                      tokens_.validation, options);
    model_->train();
    return loss;
  }

  const MatrixPlan& plan_;
  const Tokens& tokens_;
  Group& group_;
  at::Device device_;
  Transformer model_;
  BatchSampler batches_;
  std::shared_ptr<Parallelism> parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<TrainStep> step_;
};

std::vector<Record> blanks_of(const MatrixPlan& plan) {
  std::vector<Record> blanks;
  for (const std::string& implementation : plan.implementations) {
    Record& blank = blanks.emplace_back(blank_of(plan.c, implementation));
    blank.key = {{"attention", attention_of(implementation)},
                 {"division", wrapper_of(implementation)},
                 {"ranks", plan.c.ranks}};
  }
  return blanks;
}

Benchmark matrix_benchmark(const MatrixPlan& plan, const ParallelCase& c) {
  Benchmark benchmark = {
      .command = "bench matrix",
      .title = "Attention x data parallelism",
      .device = c.device,
      .schema = [](const Records&) { return matrix_schema(); },
      .how_to_read = {note("matrix")},
      .how = str(describe(c), "; ", plan.train, ", ", plan.epochs,
                 plan.epochs == 1 ? " epoch" : " epochs",
                 plan.most_steps > 0 ? str(" of at most ", plan.most_steps, " steps") : ""),
      .pictures = [c](const Records& records) { return matrix_pictures(records, describe(c)); }};
  if (c.device == "cpu") benchmark.how_to_read.push_back(note("parallel memory on a CPU"));
  return benchmark;
}

}  // namespace

void bench_matrix_rank(const std::string& task) {
  const auto plan = read_task<MatrixPlan>(task);
  const auto group = begin_rank(plan.c);
  const Tokens tokens = {TokenFile(plan.train, plan.c.model.vocab_size),
                         TokenFile(plan.validation, plan.c.model.vocab_size)};
  const at::Device device = current_device(plan.c.device);
  for (const std::string& implementation : plan.implementations) {
    tell_progress(implementation);
    begin_unit(implementation, *group);
    // Nobody begins with blocks that were cut for another's tensors.
    if (device.is_cuda()) measure::release_cached_gpu_memory();
    if (device.is_cpu()) give_freed_memory_back();
    Record record{.implementation = implementation};
    Training(plan, implementation, tokens, *group, device).run(record);
    hand_over_record(record);
  }
}

BenchReport bench_matrix(const BenchMatrixOptions& options) {
  const std::vector<ParallelCase> cases = cases_of(options.axes);
  const auto wrappers = division_names(options.wrappers, options.bucket_megabytes);
  for (const ParallelCase& c : cases) check_transports(wrappers, c.device);
  require(cases.size() == 1,
          "[bench matrix] expected one model, context, precision and number of ranks, got ",
          cases.size(), " combinations");
  // A file that cannot be read is a mistake before any rank is started.
  for (const std::string& file : {options.plan.train, options.plan.validation})
    TokenFile(file, cases[0].model.vocab_size);
  const Benchmark benchmark = matrix_benchmark(options.plan, cases[0]);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < options.attention.size(); ++i) {
      run.begin(i, options.attention.size(), "attention " + options.attention[i]);
      for (const bool alone : {true, false}) {
        MatrixPlan plan = options.plan;
        plan.c = cases[0];
        if (alone) plan.c.ranks = 1;
        for (const std::string& wrapper : wrappers)
          if ((wrapper == "none") == alone)
            plan.implementations.push_back(options.attention[i] + " " + wrapper);
        run.add(measure_plan(plan, "matrix", blanks_of(plan), run));
      }
    }
  });
}

}  // namespace flashstep::tools
