#include "flashstep/train/start.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/ops.h"
#include "flashstep/train/agreement.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"
#include "flashstep/train/trained_model.h"

namespace flashstep {
namespace {

// The data are made once: by the first rank, then, where its files are not seen, by the first rank
// of each machine.
PreparedData prepare_together(const Config& config, const TrainOptions& options,
                              const Environment& environment, Group* group,
                              const std::string& read_tokens) {
  const bool is_first = environment.rank == 0, is_first_here = environment.local_rank == 0;
  std::optional<PreparedData> prepared;
  const auto prepare = [&] {
    prepared = prepare_data(config, {options.skip_data, options.quiet, read_tokens});
  };
  try {
    if (is_first) prepare();
  } catch (const Interrupted& interrupted) {
    if (group != nullptr) group->fail(interrupted.what());  // the others wait for the data
    throw;
  }
  wait_for_all(group, "waiting for rank 0 to prepare the data");
  if (!is_first && is_first_here) prepare();
  wait_for_all(group, "waiting for every machine's first rank to prepare the data");
  if (!prepared) prepare();
  return std::move(*prepared);
}

// Of a run, or of the run of a checkpoint or of its file.
std::string tokenizer_beside(const std::string& weights) {
  std::filesystem::path directory = std::filesystem::absolute(weights);
  for (int up = 0; up < 4; ++up, directory = directory.parent_path()) {
    if (std::filesystem::is_directory(directory / "tokenizer")) return directory / "tokenizer";
  }
  return "RUN/tokenizer of their run";
}

// What shapes do not show: weights mean the ids of one tokenizer, and heads of one width.
void check_origin(const std::string& state_json, const Config& config, const Tokenizer& tokenizer,
                  const WarnFunction& warn) {
  const std::string& from = config.train.init_from;
  const std::string trained_with = tokenizer_of(state_json), saved_json = config_of(state_json);
  require(trained_with.empty() || trained_with == tokenizer.fingerprint(),
          "[train] expected the tokenizer that the weights of train.init_from, ", from,
          ", were trained with, got another one: set tokenizer.path to it, ",
          tokenizer_beside(from));
  if (saved_json.empty()) return;
  Config saved;
  read_json(saved, saved_json, "the checkpoint's config");
  require(saved.model.num_heads == config.model.num_heads,
          "[train] expected model.num_heads = ", saved.model.num_heads,
          ", as the weights of train.init_from, ", from, ", have it, got ", config.model.num_heads);
  const auto note = [&](const char* field, double before, double now) {
    if (before != now && warn)
      warn(str("[train] NOTE: ", field, " was ", before, " where the weights of ", from,
               " were trained, is now ", now));
  };
  note("model.rope_theta", saved.model.rope_theta, config.model.rope_theta);
  note("model.rope_scaling.factor", saved.model.rope_scaling.factor,
       config.model.rope_scaling.factor);
  note("model.window", static_cast<double>(saved.model.window),
       static_cast<double>(config.model.window));
  note("model.document_end", static_cast<double>(saved.model.document_end),
       static_cast<double>(config.model.document_end));
  note("model.norm_epsilon", saved.model.norm_epsilon, config.model.norm_epsilon);
}

bool is_same_place(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

}  // namespace

void keep_tokenizer(const Config& config, const Tokenizer& tokenizer, const RunDirectory& run) {
  const bool is_resumed = !list_checkpoints(run.checkpoints()).empty();
  const bool is_kept = is_resumed && std::filesystem::exists(run.tokenizer());
  std::string began_with;
  if (is_kept) {
    began_with = Tokenizer::load(run.tokenizer()).fingerprint();
  } else if (is_resumed) {
    began_with = tokenizer_of(newest_state(run.checkpoints()));
  }
  require(began_with.empty() || began_with == tokenizer.fingerprint(),
          "[resume] expected the tokenizer that the run began with, ",
          is_kept ? "in " + run.tokenizer().string() : "of fingerprint " + began_with,
          ", got another one",
          config.tokenizer.path.empty()
              ? str(", trained on another text: has ", config.text.source,
                    " (text.source) changed since? Go on with the text as it was, or begin a new "
                    "run")
              : str(", ", config.tokenizer.path));
  if (!is_kept) save_tokenizer(tokenizer, run.tokenizer());
}

bool check_saved_config(Config& config, const RunDirectory& run, int world_size) {
  if (list_checkpoints(run.checkpoints()).empty() || !std::filesystem::exists(run.config()))
    return false;
  require_trainers_state(newest_state(run.checkpoints()));
  const Config saved = load_run_config(run.path());
  const std::string &began_with = saved.train.init_from, &given = config.train.init_from;
  require(given.empty() || is_same_place(given, began_with), "[resume] expected no train.init_from",
          began_with.empty() ? "" : str(", or the run's own, ", began_with), ", got ", given,
          ": a run that goes on takes its weights from its checkpoint");
  config.train.init_from = began_with;
  if (ScheduleConfig& schedule = config.schedule; !schedule.is_warmup_given) {
    schedule.warmup_steps =
        std::min(saved.schedule.warmup_steps, schedule.longest_warmup(config.train.steps));
  }
  Config now = config;
  if (now.model.vocab_size == 0) now.model.vocab_size = saved.model.vocab_size;
  if (now.text.separate_documents && now.model.document_end < 0)
    now.model.document_end = saved.model.document_end;
  now.model = resolved(now.model);
  now.parallel.world_size = world_size;
  check_resumable(saved, now, run.config().string());
  return has_other_paths(saved, now);
}

Timeouts timeouts(const ParallelConfig& config) {
  const auto from_seconds = [](double seconds) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::duration<double>(seconds));
  };
  Timeouts result;
  result.start = from_seconds(config.start_seconds);
  result.silence = from_seconds(config.silence_seconds);
  result.collective = from_seconds(config.collective_seconds);
  return result;
}

torch::Device device_of_rank(const TrainConfig& config, const Environment& environment) {
  const torch::Device device = device_by_name(config.device);
  if (!device.is_cuda() || environment.world_size == 1) return device;
  const c10::impl::VirtualGuardImpl cuda(torch::kCUDA);
  const int index = gpu_of_rank(cuda.deviceCount(), environment);
  const torch::Device own(torch::kCUDA, static_cast<c10::DeviceIndex>(index));
  cuda.setDevice(own);
  return own;
}

void check_start(const Config& config, torch::Device device, const Group* group) {
  if (group != nullptr) check_same_config(config, device.type(), *group);
  check_device(config, device.is_cuda());
  require(
      config.train.bf16_products == "exact" || has_float8_products(device),
      "[config] expected a GPU of compute capability 8.9 or higher for train.bf16_products fp8");
  constexpr double kLeastEps = 1e-30;
  require(config.optimizer.eps >= kLeastEps, "[config] expected optimizer.eps of at least ",
          kLeastEps, ", which keeps what has no gradient yet a number, got ", config.optimizer.eps);
  check_processes(config, group == nullptr ? 1 : group->world_size());
}

PreparedData make_data(Config& config, const TrainOptions& options, const Environment& environment,
                       Group* group, const std::string& read_tokens) {
  PreparedData data = prepare_together(config, options, environment, group, read_tokens);
  if (group != nullptr) check_same_data(data, *group);
  if (config.model.vocab_size == 0) config.model.vocab_size = data.tokenizer.vocab_size();
  if (config.text.separate_documents) {
    const std::string& end = config.text.document_end;
    const auto& special = data.tokenizer.special_tokens();
    require(std::ranges::count(special, end) > 0,
            "[train] expected text.document_end to be one of the tokenizer's special tokens, ",
            join(special), ", with text.separate_documents, got ", json_spelling(end));
    const int64_t id = data.tokenizer.encode(end).front();
    int64_t& given = config.model.document_end;
    require(given < 0 || given == id, "[train] expected model.document_end ", id,
            ", which is the token of text.document_end, or -1, with text.separate_documents, got ",
            given);
    given = id;
  }
  config.model = resolved(config.model);
  if (config.tokens.check_ids) {
    data.train_tokens.check_ids_below(config.model.vocab_size);
    data.validation_tokens.check_ids_below(config.model.vocab_size);
  }
  return data;
}

StoredTensors initial_weights(const Config& config, const Tokenizer& tokenizer, const Group* group,
                              const RunDirectory* directory, const WarnFunction& warn) {
  TensorFiles files;  // rank 0's
  on_first_rank(group, "[rank 0] ", [&] {
    if (config.train.init_from.empty() || !list_checkpoints(directory->checkpoints()).empty())
      return;
    files = open_weights(config.train.init_from, warn);
    check_origin(files.state_json, config, tokenizer, warn);
  });
  return share_tensors(std::move(files), group).tensors;
}

}  // namespace flashstep
