// What a rank of `flashstep bench matrix` does.
#include <algorithm>
#include <chrono>
#include <memory>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/bench/matrix.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/replica.h"
#include "flashstep/data.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/model.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/parallelize.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

constexpr uint64_t kMatrixSeed = 1;
constexpr double kClipNorm = 1;

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
        model_(make_model(model_of(attention_of(implementation)), kMatrixSeed, device)),
        batches_(tokens.train, batch_options()) {
    const ParallelConfig division = division_by_name(wrapper_of(implementation));
    Group* parallel = wrapper_of(implementation) == "none" ? nullptr : &group;
    const std::shared_ptr<Parallelism> shared = parallelize(*model_, division, parallel);
    optimizer_ =
        make_optimizer(*model_, torch::optim::AdamWOptions(plan.learning_rate).betas({0.9, 0.95}),
                       division, *shared);
    StepOptions options;
    options.max_norm = kClipNorm;
    options.precision = precision_by_name(plan.c.precision);
    step_ = std::make_unique<TrainStep>(
        model_->parameters(), *optimizer_,
        [this](int64_t step, int64_t micro_step) {
          const Batch batch = batches_.at(step, micro_step, device_.is_cuda());
          return language_model_loss(
              model_->forward(batch.inputs.to(device_, /*non_blocking=*/true)),
              batch.targets.to(device_, /*non_blocking=*/true));
        },
        options, shared);
    if (const GradientReducer* reducer = shared->reducer())
      bucket_megabytes_ = reducer->options().bucket_megabytes;
  }

  void run(Record& record) {
    reset_peak_memory(device_);
    const int64_t whole = steps_in_epoch();
    const int64_t steps = plan_.most_steps > 0 ? std::min(whole, plan_.most_steps) : whole;
    for (int64_t epoch = 0; epoch < plan_.epochs; ++epoch) {
      group_.barrier("beginning an epoch");
      const double begin = measure::steady_seconds();
      for (const double seconds : train_epoch(epoch * whole, steps)) {
        record.samples["steps"].push_back(seconds);
      }
      record.samples["epoch"].push_back(measure::steady_seconds() - begin);
      // The parameters are the same on every rank.
      if (group_.is_first()) record.samples["validation loss"].push_back(validate());
      group_.barrier("waiting for rank 0 to evaluate", std::chrono::hours(1));
    }
    record.facts["peak_bytes"] = group_.all_reduce(peak_memory_bytes(device_), Reduce::kMax);
    record.facts["epoch steps"] = static_cast<double>(whole);
    record.facts["bucket_megabytes"] = bucket_megabytes_;
    record.facts["tokens"] =
        static_cast<double>(plan_.c.batch_size * plan_.c.context_length * group_.world_size());
  }

 private:
  ModelConfig model_of(const std::string& attention) const {
    ParallelCase c = plan_.c;
    c.attention = attention;
    return tools::model_of(c);
  }

  BatchOptions batch_options() const {
    BatchOptions options;
    options.batch_size = plan_.c.batch_size;
    options.context_length = plan_.c.context_length;
    options.seed = kMatrixSeed;
    options.order = Order::kEpoch;
    options.rank = group_.rank();
    options.world_size = group_.world_size();
    return options;
  }

  // Whole steps: rows that do not fill one belong to the next epoch.
  int64_t steps_in_epoch() const {
    const auto windows = static_cast<int64_t>(batches_.order().windows());
    const int64_t steps = windows / (plan_.c.batch_size * group_.world_size());
    require(steps > 0, "[bench matrix] expected tokens for a step of ", group_.world_size(), " x ",
            plan_.c.batch_size, " rows of ", plan_.c.context_length, ", got ", windows, " rows");
    return steps;
  }

  std::vector<double> train_epoch(int64_t first_step, int64_t steps) {
    Marks marks(device_);
    marks.set();
    for (int64_t i = 0; i < steps; ++i) {
      step_->run(first_step + i);
      marks.set();
    }
    return marks.seconds();
  }

  double validate() {
    EvaluateOptions options;
    options.batch_size = plan_.c.batch_size;
    options.context_length = plan_.c.context_length;
    options.max_tokens = static_cast<uint64_t>(plan_.validation_tokens);
    options.device = device_;
    options.precision = precision_by_name(plan_.c.precision);
    model_->eval();
    const double loss = evaluate_loss([&](const Tensor& ids) { return model_->forward(ids); },
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
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<TrainStep> step_;
  double bucket_megabytes_ = 0;
};

}  // namespace

void MatrixPlan::visit(FieldVisitor& v) {
  constexpr Range<int64_t> kCount = {0, int64_t{1} << 40};
  v.section("case", c, "what is measured");
  v.field("implementations", implementations, "attention and wrapper");
  v.field("train", train, {}, "token file");
  v.field("validation", validation, {}, "token file");
  v.field("epochs", epochs, {1, 1'000'000}, "over the token file");
  v.field("most_steps", most_steps, kCount, "of an epoch; 0: all");
  v.field("validation_tokens", validation_tokens, kCount, "0: all");
  v.field("learning_rate", learning_rate, {0, 1e6}, "of AdamW");
}

void bench_matrix_rank(const std::string& task) {
  MatrixPlan plan;
  read_json(plan, task, "the task of a rank");
  const auto group = begin_rank(plan.c);
  const Tokens tokens = {TokenFile(plan.train, model_of(plan.c).vocab_size),
                         TokenFile(plan.validation, model_of(plan.c).vocab_size)};
  const at::Device device = current_device(plan.c.device);
  for (const std::string& implementation : plan.implementations) {
    tell_progress(implementation);
    begin_unit(implementation, *group);
    // Nobody begins with blocks that were cut for another's tensors.
    if (device.is_cuda()) measure::release_cached_gpu_memory();
    Record record{.implementation = implementation};
    Training(plan, implementation, tokens, *group, device).run(record);
    hand_over_record(record);
  }
}

}  // namespace flashstep::tools
