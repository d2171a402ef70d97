// One JSON file describes the whole pipeline: text, tokenizer, tokens, model, optimizer, schedule,
// training, checkpoints, sampling, parallelism. Every field is named once, in visit(); from there
// come reading, writing, --set, the messages about typos and ranges, and the reference in --help
// (base/fields.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/detail/fields.h"
#include "flashstep/detail/model_config.h"

namespace flashstep {

struct TextConfig {
  std::string source = "stories";
  std::string validation;
  double validation_fraction = 0.05;
  std::string document_end = "<|endoftext|>";
  bool separate_documents = false;
  std::string directory = "data";
  int64_t stories_megabytes = 20, stories_seed = 1;
  std::string base_url;
  void visit(FieldVisitor& v);
};

struct TokenizerConfig {
  std::string path;
  int64_t vocab_size = 10000;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::string pattern = "gpt2";
  bool split_digits = false;
  int64_t threads = 0;
  void visit(FieldVisitor& v);
};

struct TokensConfig {
  std::string train, validation;
  bool check_ids = true;
  void visit(FieldVisitor& v);
};

struct OptimizerConfig {
  std::string kind = "adamw";
  double momentum = 0.95;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;
  bool in_backward = false;
  void visit(FieldVisitor& v);
};

struct ScheduleConfig {
  std::string kind = "cosine";
  double learning_rate = 1e-3, min_learning_rate = 1e-4;
  int64_t warmup_steps = 100, cosine_steps = 0, decay_steps = 0;
  bool is_warmup_given = true;  // else it follows from train.steps, and a resume keeps the run's
  int64_t longest_warmup(int64_t steps) const;  // of a run of so many steps
  void visit(FieldVisitor& v);
};

struct TrainConfig {
  int64_t steps = 1000, batch_size = 16, accumulation_steps = 1;
  std::string order = "random", precision = "fp32", weights = "fp32", gradients = "auto",
              moments = "fp32", stream = "auto", fp32_products = "exact", bf16_products = "exact",
              device = "auto", recompute = "none";
  int64_t recompute_group = 1, recompute_blocks = 0;
  int64_t seed = 1;
  bool deterministic = true;
  std::string graph = "auto";
  int64_t threads = 0;
  int64_t evaluate_every = 0, evaluation_tokens = 0;
  int64_t max_skipped_in_a_row = 10;
  std::string init_from;
  void visit(FieldVisitor& v);
};

struct CheckpointingConfig {
  int64_t checkpointing_interval = 1000, keep = 2;
  void visit(FieldVisitor& v);
};

struct SamplingConfig {
  std::vector<std::string> prompts = {"Once upon a time"};
  int64_t max_tokens = 200, top_k = 0, seed = 1;
  double temperature = 0.8, top_p = 0.95;
  void visit(FieldVisitor& v);
};

std::vector<std::string> wrapper_names();  // of parallel.wrapper

struct ParallelConfig {
  std::string wrapper = "bucketed";
  double bucket_megabytes = 0;
  std::string flat_buckets = "chosen";
  std::string shard_optimizer = "none";
  int64_t shard_ranks = 0;
  std::string peer_copies = "all";
  int64_t world_size = 0;
  double start_seconds = 300, silence_seconds = 30, collective_seconds = 1800;  // Timeouts
  void visit(FieldVisitor& v);
};

struct Config {
  TextConfig text;
  TokenizerConfig tokenizer;
  TokensConfig tokens;
  ModelConfig model;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  CheckpointingConfig checkpointing;
  SamplingConfig sampling;
  ParallelConfig parallel;
  void visit(FieldVisitor& v);
};

// Reads `path` over the defaults, then the assignments ("train.steps=100") in their order, then
// checks what single fields cannot know of each other. UserError for all that is wrong.
Config load_config(const std::filesystem::path& path,
                   const std::vector<std::string>& assignments = {});

// The config of a run directory: RUN/config.json. UserError if there is none.
Config load_run_config(const std::filesystem::path& run);

// Every field as "train.steps" and its value as JSON, in their order.
std::vector<std::pair<std::string, std::string>> flat_fields(const Config& config);

// What single fields cannot know of each other (a warm-up longer than the run, ...). UserError.
void check_config(const Config& config);

// What a device cannot do: UserError.
void check_device(const Config& config, bool is_gpu);

// What does not go with so many processes: UserError.
void check_processes(const Config& config, int64_t world_size);
void check_processes(const ParallelConfig& config, int64_t world_size);  // of `parallel` alone

// What "auto" stands for there. Micro-batches are summed in float32, and c10d's Reducer wants the
// parameters' dtype.
bool has_bf16_gradients(const Config& config, bool is_gpu);
bool has_short_stream(const TrainConfig& train, bool is_gpu);

// On resuming: UserError, naming the first difference, if `saved` describes another model,
// tokenizer or data than `now`; the other differences as sentences for people. Paths of text and
// tokenizer may differ. `where` `saved` stands: "the checkpoint".
std::vector<std::string> check_resumable(const Config& saved, const Config& now,
                                         const std::string& where = "the checkpoint");
// Whether they do: then their contents decide.
bool has_other_paths(const Config& saved, const Config& now);

}  // namespace flashstep
