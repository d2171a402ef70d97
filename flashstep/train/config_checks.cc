// What fields of a config do not go together, with each other, a device or a number of processes.
#include <algorithm>

#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/error.h"
#include "flashstep/train/config.h"

namespace flashstep {

void check_config(const Config& config) {
  ModelConfig model = config.model;
  if (model.vocab_size == 0) {  // the tokenizer's, known later
    model.vocab_size = 1;
    model.document_end = -1;
  }
  resolved(model);
  const ScheduleConfig& schedule = config.schedule;
  require(schedule.min_learning_rate <= schedule.learning_rate || schedule.kind == "constant",
          "[config] expected schedule.min_learning_rate of at most schedule.learning_rate, ",
          schedule.learning_rate, ", got ", schedule.min_learning_rate);
  require(schedule.kind == "constant" || schedule.cosine_steps == 0 ||
              schedule.warmup_steps <= schedule.cosine_steps,
          "[config] expected schedule.warmup_steps of at most schedule.cosine_steps, ",
          schedule.cosine_steps, ", got ", schedule.warmup_steps);
  require(schedule.warmup_steps <= config.train.steps,
          "[config] expected schedule.warmup_steps of at most "
          "train.steps, ",
          config.train.steps, ", got ", schedule.warmup_steps);
  const TrainConfig& train = config.train;
  const bool is_alone =
      config.optimizer.clip_norm == 0 && train.accumulation_steps == 1 && train.precision != "fp16";
  require(!config.optimizer.in_backward || is_alone,
          "[config] expected optimizer.clip_norm 0, train.accumulation_steps 1 and precision fp32 ",
          "or bf16 with optimizer.in_backward, which updates before all gradients are known, got ",
          config.optimizer.clip_norm, ", ", train.accumulation_steps, " and ", train.precision);
  require(train.evaluation_tokens != 1,
          "[config] expected train.evaluation_tokens of at least 2, a token and the next one, or 0 "
          "for all, got 1");
  require(train.stream != "bf16" || train.precision == "bf16",
          "[config] expected train.stream fp32 with train.precision ", train.precision,
          ", got bf16");
  const bool is_narrow = train.precision == "bf16" && train.moments == "bf16";
  require(train.weights != "bf16" || is_narrow,
          "[config] expected train.precision bf16 and train.moments bf16 with train.weights bf16, ",
          "whose moments are no wider, got ", train.precision, " and ", train.moments);
  require(train.fp32_products == "exact" || train.precision == "fp32",
          "[config] expected train.fp32_products exact with train.precision ", train.precision,
          ", got split");
  require(train.bf16_products == "exact" || train.precision == "bf16",
          "[config] expected train.bf16_products exact with train.precision ", train.precision,
          ", got fp8");
  if (train.bf16_products == "fp8") check_float8_widths(resolved(model));
  const ParallelConfig& parallel = config.parallel;
  require(parallel.shard_ranks == 0 || parallel.shard_optimizer == "full",
          "[config] expected parallel.shard_ranks 0 with parallel.shard_optimizer ",
          parallel.shard_optimizer, ", got ", parallel.shard_ranks);
  require(
      config.optimizer.kind == "adamw" || parallel.shard_optimizer == "none" ||
          parallel.shard_optimizer == "whole",
      "[config] expected parallel.shard_optimizer none or whole with optimizer.kind muon, which ",
      "updates whole matrices, got ", parallel.shard_optimizer);
  require(
      config.tokens.train.empty() == config.tokens.validation.empty(),
      "[config] expected tokens.train and tokens.validation to be given together, got only one");
  require(config.tokenizer.vocab_size >=
              256 + static_cast<int64_t>(config.tokenizer.special_tokens.size()),
          "[config] expected a tokenizer.vocab_size of at least 256 + ",
          config.tokenizer.special_tokens.size(), " special tokens, got ",
          config.tokenizer.vocab_size);
  check_special_tokens(config.tokenizer.special_tokens, "tokenizer.special_tokens");
}

void check_device(const Config& config, bool is_gpu) {
  const auto names = attention_implementations();
  const std::string& name = config.model.attention;
  require(std::find(names.begin(), names.end(), name) != names.end(),
          "[config] expected model.attention to be one of ", join(names), ", got ", name);
  require(config.train.graph != "on" || is_gpu,
          "[config] expected a GPU for train.graph on, got a run on the CPU");
  require(config.train.fp32_products == "exact" || is_gpu,
          "[config] expected a GPU for train.fp32_products split, got a run on the CPU");
  require(config.train.bf16_products == "exact" || is_gpu,
          "[config] expected a GPU for train.bf16_products fp8, got a run on the CPU");
}

void check_processes(const ParallelConfig& config, int64_t world_size) {
  require(config.world_size == 0 || config.world_size == world_size, "[parallel] expected ",
          config.world_size, " processes (parallel.world_size), got ", world_size);
  require(config.shard_ranks == 0 || world_size % config.shard_ranks == 0,
          "[parallel] expected parallel.shard_ranks that divides the number of processes, ",
          world_size, ", got ", config.shard_ranks);
  if (world_size == 1) return;
  require(config.wrapper != "none",
          "[parallel] expected one process for parallel.wrapper none, got ", world_size);
  require(config.shard_optimizer != "full" || config.wrapper == "bucketed",
          "[parallel] expected parallel.wrapper bucketed, its default, with shard_optimizer full, ",
          "which averages gradients by itself, got ", config.wrapper);
}

void check_processes(const Config& config, int64_t world_size) {
  const ParallelConfig& parallel = config.parallel;
  check_processes(parallel, world_size);
  if (world_size == 1) return;
  require(!config.optimizer.in_backward || parallel.shard_optimizer == "full",
          "[parallel] expected one process, or parallel.shard_optimizer full, with ",
          "optimizer.in_backward, which updates before gradients are averaged, got ", world_size,
          " processes and ", parallel.shard_optimizer);
  const TrainConfig& train = config.train;
  require(parallel.wrapper != "torch" || (train.gradients == "bf16") == (train.weights == "bf16"),
          "[parallel] expected train.gradients in the dtype of train.weights, ", train.weights,
          ", with parallel.wrapper torch, which takes no others, got ", train.gradients);
}

}  // namespace flashstep
