#include "flashstep/train/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/comm/cores.h"
#include "flashstep/data.h"
#include "flashstep/data/bigram.h"
#include "flashstep/data_parallel.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"
#include "flashstep/model.h"
#include "flashstep/model/cost.h"
#include "flashstep/model/generate.h"
#include "flashstep/optim.h"
#include "flashstep/train/bigram_loss.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/parts.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/start.h"
#include "flashstep/train/trained_model.h"

namespace flashstep {
namespace {

using torch::Tensor;

void say(const TrainOptions& options, const std::string& sentence) {
  if (!options.quiet) std::fprintf(stderr, "%s\n", sentence.c_str());
}

std::function<double(int64_t)> learning_rate(const Config& config) {
  Schedule schedule{config.schedule.learning_rate, config.schedule.min_learning_rate,
                    config.schedule.warmup_steps, config.schedule.cosine_steps};
  if (config.schedule.kind == "constant") {
    schedule.cosine_steps = 0;
  } else if (schedule.cosine_steps == 0) {
    schedule.cosine_steps = config.train.steps;
  }
  if (config.schedule.kind == "wsd") {
    const int64_t given = config.schedule.decay_steps;
    schedule.decay_steps = given > 0 ? given : std::max<int64_t>(1, schedule.cosine_steps / 5);
  }
  return [schedule](int64_t t) { return learning_rate_at(schedule, t); };
}

LoopOptions loop_options(const Config& config, const TrainOptions& options) {
  LoopOptions loop;
  loop.resume = options.resume;
  loop.quiet = options.quiet;
  loop.steps = config.train.steps;
  loop.step = step_options(config);
  loop.graph = graph_mode_by_name(config.train.graph);
  loop.evaluate_every = config.train.evaluate_every;
  loop.max_skipped_in_a_row = config.train.max_skipped_in_a_row;
  loop.checkpointing_interval = config.checkpointing.checkpointing_interval;
  loop.keep_checkpoints = config.checkpointing.keep;
  return loop;
}

BatchOptions batch_options(const Config& config, const Parallelism& parallel) {
  BatchOptions batches;
  batches.batch_size = config.train.batch_size;
  batches.context_length = config.model.context_length;
  batches.seed = static_cast<uint64_t>(config.train.seed);
  batches.order = order_by_name(config.train.order);
  batches.micro_steps = config.train.accumulation_steps;
  batches.rank = parallel.rank();
  batches.world_size = parallel.world_size();
  return batches;
}

// Of one micro-batch, where it stays from step to step.
Batch room_for_batch(const Config& config, torch::Device device) {
  const auto ids = [&] {
    return at::zeros({config.train.batch_size, config.model.context_length},
                     at::TensorOptions(device).dtype(at::kLong));
  };
  return {ids(), ids()};
}

// What one rank trains, on what and where; the job's functions refer to it.
struct Training {
  Config config;  // with what the data and the ranks decide
  TrainOptions options;
  torch::Device device;
  Group* group;
  const RunDirectory* directory;  // null on all ranks but the first
  const PreparedData& data;
  Transformer model;
  std::shared_ptr<Parallelism> parallel;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  BatchSampler batches;
  Batch staged;

  double held_out_loss() {
    EvaluateOptions evaluate;
    evaluate.batch_size = config.train.batch_size;
    evaluate.context_length = config.model.context_length;
    evaluate.max_tokens = static_cast<uint64_t>(config.train.evaluation_tokens);
    evaluate.vocab_size = config.model.vocab_size;
    evaluate.device = device;
    evaluate.precision = precision_by_name(config.train.precision);
    evaluate.group = group;
    evaluate.calls_on_all_ranks = parallel->units() != nullptr;
    const TokenLoss loss_of = [this](const Tensor& ids, const Tensor& targets) {
      return parallel->call([&] { return model->loss(ids, targets); });
    };
    model->eval();
    const double loss = evaluate_loss(loss_of, data.validation_tokens, evaluate);
    model->train();
    return loss;
  }

  // Pinned memory is not given to the next batch before this one is copied (LibTorch's allocator
  // remembers the copy by an event).
  void stage(int64_t step, int64_t micro_step) {
    const Batch batch = batches.at(step, micro_step, device.is_cuda());
    staged.inputs.copy_(batch.inputs, /*non_blocking=*/true);
    staged.targets.copy_(batch.targets, /*non_blocking=*/true);
  }

  std::string sample() {
    const ShardedUnits* const units = parallel->units();
    if (units == nullptr) return sample(model);
    if (config.sampling.prompts.empty()) return "";
    const NamedTensors weights = units->gather(/*to=*/0);
    if (!parallel->is_main_rank()) return "";
    try {
      Transformer whole(config.model, std::nullopt, device);
      load_module(*whole, in_memory(weights), "the ranks' shards");
      return sample(whole);
    } catch (const c10::OutOfMemoryError&) {
      return "(no sample: the whole model does not fit on the GPU beside its shards)";
    }
  }

  std::string sample(Transformer& whole) const {
    std::vector<std::string> samples;
    for (const std::string& prompt : config.sampling.prompts) {
      try {
        samples.push_back(
            write_sample(whole, data.tokenizer, prompt, config.sampling, config.text.document_end));
      } catch (const NotNumbers& error) {  // ends no run: what it has is saved
        whole->train();
        return str("(no sample: ", error.what(), ")");
      }
    }
    return join(samples, "\n\n");
  }
};

Training make_training(Config config, const TrainOptions& options, torch::Device device,
                       Group* group, const RunDirectory* directory, const PreparedData& data) {
  const auto warn = [&](const std::string& sentence) { say(options, sentence); };
  const StoredTensors weights = initial_weights(config, data.tokenizer, group, directory, warn);
  TrainedParts parts = make_parts(config, device, group, weights);
  config.parallel.world_size = parts.parallel->world_size();
  BatchSampler batches(data.train_tokens, batch_options(config, *parts.parallel),
                       config.model.vocab_size);
  Batch staged = room_for_batch(config, device);
  return {std::move(config),
          options,
          device,
          group,
          directory,
          data,
          std::move(parts.model),
          std::move(parts.parallel),
          std::move(parts.optimizer),
          std::move(batches),
          std::move(staged)};
}

std::string describe_parallel(const Training& training, const Environment& environment) {
  const TrainConfig& train = training.config.train;
  const int64_t ranks = training.parallel->world_size();
  const int64_t shard_ranks = training.config.parallel.shard_ranks;
  const GradientReducer* const reducer = training.parallel->reducer();
  return str("[parallel] ", ranks, " processes, started by ", environment.launcher,
             "; a step takes ", ranks, " x ", train.accumulation_steps, " x ", train.batch_size,
             " = ", ranks * train.accumulation_steps * train.batch_size, " sequences; ",
             reducer != nullptr ? "wrapper " + reducer->describe()
                                : "fully sharded, by " + training.parallel->units()->transport(),
             "; optimizer shards ", training.config.parallel.shard_optimizer,
             shard_ranks > 0 ? str(" within ", shard_ranks, " processes") : "");
}

// What is trained, on what and where, before the first step: one line each.
void describe_run(const Training& training, const Environment& environment) {
  const TrainOptions& options = training.options;
  if (options.quiet) return;
  const auto commas = [](uint64_t count) { return with_commas(static_cast<int64_t>(count)); };
  const Config& config = training.config;
  const std::string source = config.tokens.train.empty()
                                 ? config.text.source + ", kept in " + config.text.directory
                                 : config.tokens.train;
  say(options, str("[data] ", commas(training.data.train_tokens.size()), " tokens to train on, ",
                   commas(training.data.validation_tokens.size()), " held out, from ", source));
  uint64_t parameters = 0;
  for (const auto& [name, parameter] : whole_tensors(*training.model, *training.parallel))
    parameters += static_cast<uint64_t>(parameter.numel());
  const ModelConfig& model = config.model;
  say(options,
      str("[model] ", commas(parameters), " parameters: ", model.num_layers, " layers, d_model ",
          model.d_model, ", d_ff ", model.d_ff, ", ", model.num_heads, " heads",
          model.kv_heads() == model.num_heads ? "" : str(" (", model.kv_heads(), " of keys)"),
          ", context ", model.context_length,
          model.window > 0 ? str(", window ", model.window) : "",
          model.document_end >= 0 ? ", documents apart" : "", ", vocabulary ",
          commas(static_cast<uint64_t>(model.vocab_size)), model.tie_embeddings ? " (tied)" : "",
          ", attention ", model.attention));
  const measure::Machine machine = measure::describe_machine();
  say(options, str("[machine] ", measure::one_line(machine), "; ", config.train.precision,
                   config.train.bf16_products == "fp8" ? ", products of blocks fp8, on " : " on ",
                   training.device.str(), ", ", at::get_num_threads(), " threads"));
  if (at::get_num_threads() > machine.cores) {
    say(options, str("[machine] more threads (train.threads ", config.train.threads,
                     ") than processors (", machine.cores, "): they wait for each other"));
  }
  if (training.group != nullptr) say(options, describe_parallel(training, environment));
}

// `training` must outlive it.
Job make_job(Training& training) {
  const Config& config = training.config;
  const TrainConfig& train = config.train;
  const TokenFile& tokens = training.data.train_tokens;
  Job job{*training.model, *training.optimizer, [&](int64_t /*step*/, int64_t /*micro_step*/) {
            return training.model->loss(training.staged.inputs, training.staged.targets);
          }};
  job.stage = [&](int64_t step, int64_t micro_step) { training.stage(step, micro_step); };
  job.parallel = training.parallel;
  job.learning_rate = learning_rate(config);
  job.evaluates_together = training.group != nullptr;
  job.held_out_loss = [&] { return training.held_out_loss(); };
  job.sample = [&] { return training.sample(); };
  job.tokens_per_step = train.batch_size * train.accumulation_steps * config.model.context_length *
                        training.parallel->world_size();
  job.flops_per_step = static_cast<double>(train.accumulation_steps) *
                       step_flops(config.model, train.batch_size, config.model.context_length);
  // With documents the FLOPs of attention depend on the data: no share of the limit is shown.
  if (training.parallel->is_main_rank() && config.model.document_end < 0) {
    job.limit_flops_per_s = measure::matmul_limit_flops(
        training.device.is_cuda() ? "cuda" : "cpu",
        train.fp32_products == "split" ? "fp32-split" : train.precision);
  }
  job.data_fingerprint = tokens.fingerprint();
  job.held_out_fingerprint = training.data.validation_tokens.fingerprint();
  job.tokenizer_fingerprint = training.data.tokenizer.fingerprint();
  job.config_json = write_json(config);
  job.keeps_options = false;  // the config has them, and may change them
  job.check_config = [&](const std::string& saved_json) {
    Config saved;
    read_json(saved, saved_json, "the checkpoint's config");
    for (const std::string& change : check_resumable(saved, config)) say(training.options, change);
  };
  if (training.directory == nullptr || !config.tokens.check_ids ||
      tokens.size() < kFewestBigramTokens)
    return job;
  try {
    job.bigram_loss =
        bigram_loss_of_run(training.directory->bigram(), tokens, training.data.validation_tokens,
                           config.model.vocab_size, training.options.quiet);
  } catch (const Interrupted&) {
    // Of several ranks the loop stops all, after a step; a run that goes on counts anew.
    if (training.group == nullptr) throw;
  }
  return job;
}

// make_data() for a run that goes on, whose text or tokenizer has another path now: data that are
// there are not made anew from what may be another text.
PreparedData same_data(Config& config, TrainOptions options, const Environment& environment,
                       Group* group) {
  if (!std::filesystem::exists(std::filesystem::path(config.text.directory) / "train.npy"))
    return make_data(config, options, environment, group);
  options.skip_data = true;
  try {
    return make_data(config, options, environment, group);
  } catch (const AgreedError&) {
    throw;
  } catch (const UserError& error) {
    throw UserError(str("[resume] expected the training data that the run has read so far, got ",
                        "other paths, which lead to others: ", error.what()));
  }
}

LoopResult train_rank(Config config, TrainOptions options, const Environment& environment,
                      torch::Device device, Group* group, std::optional<SignalGuard>& signals) {
  options.quiet = options.quiet || environment.rank != 0;
  check_start(config, device, group);
  std::optional<RunDirectory> own_directory;
  if (environment.rank == 0) own_directory.emplace(options.run_directory, options.resume);
  const RunDirectory* const directory = own_directory ? &*own_directory : nullptr;
  bool has_other_paths = false;
  std::string read_tokens;
  if (directory != nullptr && options.resume) {
    has_other_paths = check_saved_config(config, *directory, environment.world_size);
    read_tokens = tokens_read_by(directory->checkpoints());
  }
  if (group != nullptr) {  // rank 0 alone has the run's config
    int64_t& warmup = config.schedule.warmup_steps;
    warmup = std::stoll(group->broadcast(str(warmup)));
  }
  const PreparedData data = has_other_paths
                                ? same_data(config, options, environment, group)
                                : make_data(config, options, environment, group, read_tokens);
  if (!signals) signals.emplace();  // from here on a signal ends all ranks after a step
  Training training = make_training(config, options, device, group, directory, data);
  if (directory != nullptr) keep_tokenizer(config, data.tokenizer, *directory);
  describe_run(training, environment);
  const Job job = make_job(training);
  wait_for_all(group, "waiting for rank 0 to count the bigram model's pairs");
  return run(job, loop_options(training.config, options), directory);
}

}  // namespace

LoopResult train(const Config& config, const TrainOptions& options) {
  const Environment environment = read_environment();
  set_up_process(config.train);
  const torch::Device device = device_of_rank(config.train, environment);
  let_memory_grow(device);
  // Outlives the group: a rank that failed waits for the others there, and launchers end ranks by
  // SIGTERM as soon as one has failed. It must not die of that before it has said why.
  std::optional<SignalGuard> signals;
  if (environment.world_size == 1) {
    signals.emplace();  // from here on a signal ends a run with a sentence
    return train_rank(config, options, environment, device, nullptr, signals);
  }
  if (config.train.threads == 0) share_cores(environment);
  GroupOptions group_options;
  group_options.nccl = device.is_cuda();
  group_options.timeouts = timeouts(config.parallel);
  group_options.on_stuck = end_process;
  Group group(environment, group_options);
  try {
    return train_rank(config, options, environment, device, &group, signals);
  } catch (const Interrupted&) {
    throw;  // every rank stops at the same step
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    group.fail(error.what());
    throw;
  }
}

}  // namespace flashstep
