#include "flashstep/train/config.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr int64_t kMany = 1'000'000'000'000;
constexpr double kHuge = 1e30;
constexpr int64_t kNotGiven = -1;        // below what any field that uses it allows
constexpr double kLongestSeconds = 1e7;  // four months: any longer is no limit

using OrderedJson = nlohmann::ordered_json;

// Every leaf of a config as "a.b" -> its JSON text.
void flatten(const OrderedJson& value, const std::string& path,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (!value.is_object()) {
    out.emplace_back(path, value.dump());
    return;
  }
  for (const auto& [key, child] : value.items())
    flatten(child, path.empty() ? key : path + "." + key, out);
}

// Fields that change the meaning of the weights, or which tokens come next.
bool must_agree(const std::string& path) {
  static const std::set<std::string> kTrain = {"train.batch_size", "train.accumulation_steps",
                                               "train.order",      "train.seed",
                                               "train.precision",  "optimizer.kind"};
  const auto starts_with = [&](const char* prefix) { return path.rfind(prefix, 0) == 0; };
  return (starts_with("model.") && path != "model.attention") || kTrain.contains(path) ||
         (starts_with("tokenizer.") && path != "tokenizer.threads") ||
         (starts_with("text.") && path != "text.directory" && path != "text.base_url");
}

bool is_built_in(const std::string& source) {
  return source == "stories" || source == "tinystories";
}

// Fields that must agree, but for where the same may lie elsewhere, or be spelled otherwise: what
// paths lead to is compared by its fingerprint.
bool may_be_respelled(const std::string& path, const Config& saved, const Config& now) {
  const auto are_paths = [](const std::string& a, const std::string& b) {
    return !a.empty() && !b.empty();
  };
  // Where one was trained, it is given once its text is elsewhere.
  if (path == "text.source")
    return !is_built_in(saved.text.source) && !is_built_in(now.text.source);
  if (path == "text.validation") return are_paths(saved.text.validation, now.text.validation);
  if (path == "tokenizer.path") return !now.tokenizer.path.empty();
  // Of how one is trained, where none is.
  if (path == "tokenizer.vocab_size" || path == "tokenizer.special_tokens" ||
      path == "tokenizer.pattern" || path == "tokenizer.split_digits")
    return are_paths(saved.tokenizer.path, now.tokenizer.path);
  const bool is_of_stories = path == "text.stories_seed" || path == "text.stories_megabytes";
  return is_of_stories && now.text.source != "stories";
}

int64_t rows_per_step(const Config& config) {
  const int64_t ranks = std::max<int64_t>(config.parallel.world_size, 1);
  return config.train.batch_size * config.train.accumulation_steps * ranks;
}

}  // namespace

void TextConfig::visit(FieldVisitor& v) {
  v.field("source", source, {},
          "a file, a directory (its .txt files; where it has none, all that are text), "
          "\"tinystories\" (downloaded) or \"stories\" (built in)");
  v.field("validation", validation, {},
          "a file or directory held out; empty: TinyStories' own, else cut");
  v.field("validation_fraction", validation_fraction, {1e-6, 0.9},
          "share of the text that is cut off for validation, at the end of a document; before a "
          "line where none ends near");
  v.field("document_end", document_end, {},
          "what ends a document; it is added behind each file that does not end with it");
  v.field("separate_documents", separate_documents,
          "attention does not cross the ends of documents: sets model.document_end to the token of "
          "document_end");
  v.field("directory", directory, {}, "where text, tokenizer and tokens are put");
  v.field("stories_megabytes", stories_megabytes, {1, 1'000'000},
          "size of the built-in corpus, MB");
  v.field("stories_seed", stories_seed, {0, kMany}, "seed of the built-in corpus");
  v.field("base_url", base_url, {},
          "folder that holds the TinyStories files; empty: the publisher's");
}

void TokenizerConfig::visit(FieldVisitor& v) {
  v.field("path", path, {}, "a tokenizer to use; empty: one is trained on the text");
  v.field("vocab_size", vocab_size, {256, 4'000'000},
          "of the tokenizer that is trained, special tokens included");
  v.field("special_tokens", special_tokens, "never split, never merged across");
  v.field("pattern", pattern, {"gpt2", "gpt4"},
          "of the tokenizer that is trained: how text is cut into words; gpt4: numbers of three "
          "digits at most, a sign with the letters behind it");
  v.field("split_digits", split_digits,
          "of the tokenizer that is trained: every digit is a word of its own");
  v.field("threads", threads, {0, 1024}, "threads that train and encode; 0: all");
}

void TokensConfig::visit(FieldVisitor& v) {
  v.field("train", train, {}, "a .npy of token ids to train on; empty: the text is encoded");
  v.field("validation", validation, {}, "a .npy of held-out token ids; empty: the text is encoded");
  v.field("check_ids", check_ids,
          "read all tokens before training: every id must be below the vocabulary, and a bigram "
          "model's loss is drawn beside the run's");
}

void OptimizerConfig::visit(FieldVisitor& v) {
  v.field(
      "kind", kind, {"adamw", "muon"},
      "muon: the blocks' matrices move along their momentum, orthogonalized; AdamW updates "
      "embeddings, head and norms. Fewer steps to a loss, at a learning_rate 2 to 4 times AdamW's "
      "best; a step takes longer by a time that does not depend on its tokens");
  v.field("momentum", momentum, {0, 0.999999}, "decay of the gradients' mean in Muon");
  v.field("beta1", beta1, {0, 0.999999}, "decay of the gradients' mean");
  v.field("beta2", beta2, {0, 0.9999999}, "decay of the squared gradients' mean");
  v.field("eps", eps, {0, 1}, "added to the root of the squared gradients' mean");
  v.field("weight_decay", weight_decay, {0, 10}, "decoupled weight decay");
  v.field("clip_norm", clip_norm, {0, kHuge}, "gradients are clipped to this global norm; 0: not");
  v.field(
      "in_backward", in_backward,
      "update parameters as soon as their gradients are there, and drop these: less memory; one "
      "process, or parallel.shard_optimizer full; without clipping");
}

void ScheduleConfig::visit(FieldVisitor& v) {
  v.field("kind", kind, {"cosine", "wsd", "constant"},
          "what follows the warm-up; wsd: a stable rate, then a linear decay");
  v.field("learning_rate", learning_rate, {0, 1000}, "the highest, reached after the warm-up");
  v.field("min_learning_rate", min_learning_rate, {0, 1000}, "where the rate ends");
  v.field("warmup_steps", warmup_steps, {0, kMany},
          "steps of linear warm-up; where it is not given and the run has fewer: a tenth of them");
  v.field("cosine_steps", cosine_steps, {0, kMany},
          "step at which the cosine, or the decay, ends; 0: train.steps");
  v.field("decay_steps", decay_steps, {0, kMany},
          "of wsd: the last steps, in which the rate decays; 0: a fifth of all");
}

int64_t ScheduleConfig::longest_warmup(int64_t steps) const {
  return kind == "constant" || cosine_steps == 0 ? steps : std::min(steps, cosine_steps);
}

void TrainConfig::visit(FieldVisitor& v) {
  v.field("steps", steps, {1, kMany}, "optimizer updates in all");
  v.field("batch_size", batch_size, {1, 1'000'000}, "sequences in a micro-batch, per rank");
  v.field("accumulation_steps", accumulation_steps, {1, 1'000'000}, "micro-batches in a step");
  v.field("order", order, {"random", "epoch", "sequential"},
          "where sequences start: anywhere, each window once an epoch, or in the file's order");
  v.field("precision", precision, {"fp32", "bf16", "fp16"}, "of matrix products, by autocast");
  v.field(
      "weights", weights, {"fp32", "bf16"},
      "weight matrices between steps; bf16: half their memory, no copies to compute with, updates "
      "rounded stochastically");
  v.field(
      "gradients", gradients, {"auto", "fp32", "bf16"},
      "of weight matrices; auto: bf16 on a GPU with precision bf16 and one micro-batch, else fp32");
  v.field("moments", moments, {"fp32", "bf16"},
          "of AdamW, and Muon's momentum; bf16: half their memory, rounded stochastically");
  v.field("stream", stream, {"auto", "fp32", "bf16"},
          "of the residual stream between blocks; auto: bf16 on a GPU with precision bf16, else "
          "fp32");
  v.field(
      "fp32_products", fp32_products, {"exact", "split"},
      "matrix products of precision fp32 on a GPU; split: of numbers split into two bf16, some 5 "
      "times as fast, with errors of 5e-6 to 2e-5 instead of 7e-7");
  v.field("bf16_products", bf16_products, {"exact", "fp8"},
          "matrix products of blocks, precision bf16 on a GPU from compute capability 8.9; fp8: of "
          "numbers rounded to 8 bits, one scale a matrix, up to 1.7 times as fast");
  v.field("recompute", recompute, recompute_names(),
          "in backward instead of kept in memory, with the same bits; norms: the norms' outputs, "
          "inner: "
          "and the gates (both: GPU, bf16 and fp16); block: all but the inputs of recompute_group "
          "blocks");
  v.field("recompute_group", recompute_group, {1, 10'000},
          "blocks that recompute = block goes through again at once");
  v.field(
      "recompute_blocks", recompute_blocks, {0, 10'000},
      "of how many blocks, from the first on; the others, beside inner and block, as norms; 0: of "
      "all");
  v.field("device", device, {"auto", "cpu", "cuda"}, "auto: the GPU if there is one");
  v.field("seed", seed, {0, kMany}, "of weights and batches");
  v.field("deterministic", deterministic, "the same bits in every run on the same machine");
  v.field(
      "graph", graph, {"auto", "on", "off"},
      "steps recorded in a CUDA graph and replayed, with the same bits; auto: where that can be; "
      "on: or not at all");
  v.field("threads", threads, {0, 1024}, "CPU threads that compute; 0: all");
  v.field("evaluate_every", evaluate_every, {0, kMany},
          "steps between evaluations; 0: first and last only");
  v.field("evaluation_tokens", evaluation_tokens, {0, kMany},
          "held-out tokens that are read; 0: all");
  v.field("max_skipped_in_a_row", max_skipped_in_a_row, {1, kMany},
          "that many steps whose loss or gradients are not finite end the run");
  v.field("init_from", init_from, {},
          "a run, checkpoint or .safetensors file to take the weights from");
}

void CheckpointingConfig::visit(FieldVisitor& v) {
  v.field("checkpointing_interval", checkpointing_interval, {-kMany, kMany},
          "> 0: every N steps; <= 0: none but the last. The last step always");
  v.field("keep", keep, {0, kMany}, "newest checkpoints that are kept; 0: all");
}

void SamplingConfig::visit(FieldVisitor& v) {
  v.field("prompts", prompts, "one sample of each before and after training");
  v.field("max_tokens", max_tokens, {0, 1'000'000},
          "tokens after the prompt; the end of a document ends a sample");
  v.field("temperature", temperature, {0, 100}, "0: the likeliest token");
  v.field("top_k", top_k, {0, 4'000'000}, "only the k likeliest tokens; 0: all");
  v.field("top_p", top_p, {1e-6, 1},
          "only the likeliest tokens that together reach this probability");
  v.field("seed", seed, {0, kMany}, "of the samples");
}

std::vector<std::string> wrapper_names() {
  return {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
}

void ParallelConfig::visit(FieldVisitor& v) {
  v.field("wrapper", wrapper, wrapper_names(),
          "how gradients of several processes are averaged; none: there is one process");
  v.field("bucket_megabytes", bucket_megabytes, {0, 1e6},
          "gradients that are averaged together, MB (bucketed, torch); 0: chosen");
  v.field("flat_buckets", flat_buckets, {"chosen", "yes", "no"},
          "gradients are copied side by side before they are sent (bucketed); chosen: by backend");
  v.field(
      "shard_optimizer", shard_optimizer, {"none", "whole", "flat", "full"},
      "each process keeps the optimizer's state of; whole: some parameters; flat: an equal part of "
      "all, and of their gradients; full: and of the parameters themselves");
  v.field("shard_ranks", shard_ranks, {0, 1'000'000},
          "processes that divide one copy of the parameters (shard_optimizer full), those of a "
          "machine, say; gradients are averaged between the copies; 0: all processes, one copy");
  v.field("peer_copies", peer_copies, {"none", "updates", "all"},
          "what copy engines carry between GPUs of one machine, NCCL the rest; updates: parameters "
          "that a process has updated (shard_optimizer); all: gradients, too (bucketed)");
  v.field("world_size", world_size, {0, 1'000'000},
          "processes that must take part; 0: as many as were started");
  v.field("start_seconds", start_seconds, {0.1, kLongestSeconds},
          "for all processes to start and connect");
  v.field("silence_seconds", silence_seconds, {0.1, kLongestSeconds},
          "a process that was not heard for this long is lost, and all end");
  v.field("collective_seconds", collective_seconds, {0.1, kLongestSeconds},
          "a collective that takes longer fails");
}

void Config::visit(FieldVisitor& v) {
  v.section("text", text, "raw text");
  v.section("tokenizer", tokenizer, "byte-level BPE");
  v.section("tokens", tokens, "encoded text");
  v.section("model", model, "the Transformer");
  v.section("optimizer", optimizer, "AdamW, and Muon");
  v.section("schedule", schedule, "learning rate by step");
  v.section("train", train, "the loop");
  v.section("checkpointing", checkpointing, "what is saved, and when");
  v.section("sampling", sampling, "text that the model writes");
  v.section("parallel", parallel, "several processes");
}

Config load_config(const std::filesystem::path& path, const std::vector<std::string>& assignments) {
  Config config;
  int64_t& warmup = config.schedule.warmup_steps;
  const int64_t default_warmup = std::exchange(warmup, kNotGiven);
  read_json(config, read_file(path), path.string());
  for (const std::string& assignment : assignments) set_field(config, assignment);
  config.schedule.is_warmup_given = warmup != kNotGiven;
  if (!config.schedule.is_warmup_given) {
    const int64_t steps = config.schedule.longest_warmup(config.train.steps);
    warmup = steps < default_warmup ? steps / 10 : default_warmup;
  }
  check_config(config);
  return config;
}

Config load_run_config(const std::filesystem::path& run) {
  require(std::filesystem::exists(run / "config.json"),
          "[run] expected the directory of a run, with a "
          "config.json in it, got ",
          run.string());
  const auto written = nlohmann::json::parse(read_file(run / "config.json"), nullptr,
                                             /*allow_exceptions=*/false);
  require(!written.is_object() || written.contains("model"),
          "[run] expected a run of the program, whose config.json has a model, got ", run.string(),
          ", which the library trained: only the code that made its module can load it");
  return load_config(run / "config.json");
}

bool has_bf16_gradients(const Config& config, bool is_gpu) {
  const TrainConfig& train = config.train;
  if (train.gradients != "auto") return train.gradients == "bf16";
  return is_gpu && train.precision == "bf16" && train.accumulation_steps == 1 &&
         config.parallel.wrapper != "torch";
}

bool has_short_stream(const TrainConfig& train, bool is_gpu) {
  if (train.stream != "auto") return train.stream == "bf16";
  return is_gpu && train.precision == "bf16";
}

std::vector<std::pair<std::string, std::string>> flat_fields(const Config& config) {
  std::vector<std::pair<std::string, std::string>> fields;
  flatten(OrderedJson::parse(write_json(config)), "", fields);
  return fields;
}

std::vector<std::string> check_resumable(const Config& saved, const Config& now,
                                         const std::string& where) {
  const auto before = flat_fields(saved), after = flat_fields(now);
  std::vector<std::string> changes;
  const bool same_rows = rows_per_step(saved) == rows_per_step(now);
  if (!same_rows && saved.parallel.world_size != now.parallel.world_size) {
    changes.push_back(flashstep::str("[resume] a step took ", rows_per_step(saved),
                                     " sequences, with another number of processes it takes ",
                                     rows_per_step(now)));
  }
  for (size_t i = 0; i < after.size(); ++i) {
    const auto& [path, value] = after[i];
    if (before[i].second == value) continue;
    // The rows of a step may be divided among ranks and micro-batches in another way.
    const bool divides_rows = path == "train.batch_size" || path == "train.accumulation_steps";
    require(!must_agree(path) || (divides_rows && same_rows) || may_be_respelled(path, saved, now),
            "[resume] expected ", path, " = ", before[i].second, ", as ", where, " has it, got ",
            value, divides_rows ? ": a new run with train.init_from may have another" : "");
    const bool moves_end =
        path == "train.steps" && now.schedule.kind != "constant" && now.schedule.cosine_steps == 0;
    changes.push_back(flashstep::str("[resume] ", path, " was ", before[i].second, ", is now ",
                                     value,
                                     moves_end ? ": the learning rate falls until then" : ""));
  }
  return changes;
}

bool has_other_paths(const Config& saved, const Config& now) {
  return saved.text.source != now.text.source || saved.text.validation != now.text.validation ||
         saved.tokenizer.path != now.tokenizer.path;
}

}  // namespace flashstep
