#include "flashstep/train/trained_model.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include <torch/cuda.h>

#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/model/generate.h"
#include "flashstep/train/checkpoint_folder.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// Bytes that come a token at a time, up to the first of several texts.
class TextUntil {
 public:
  explicit TextUntil(std::vector<std::string> ends) : ends_(std::move(ends)) {}

  // False once one of the ends has come: it and what is behind it are gone.
  bool add(const std::string& bytes) {
    const size_t before = text_.size();
    text_ += bytes;
    size_t end = std::string::npos;
    for (const std::string& stop : ends_) {  // it may have begun earlier, and ends in `bytes`
      const size_t from = before - std::min(before, stop.size() - 1);
      end = std::min(end, text_.find(stop, from));
    }
    if (end == std::string::npos) return true;
    text_.resize(end);
    return false;
  }

  const std::string& text() const { return text_; }

  // The size of the text without what one of the ends may begin with.
  size_t certain() const {
    size_t held = 0;
    for (const std::string& end : ends_) {
      size_t length = std::min(end.size() - 1, text_.size());
      while (length > held && !text_.ends_with(std::string_view(end).substr(0, length))) --length;
      held = std::max(held, length);
    }
    return text_.size() - held;
  }

 private:
  std::vector<std::string> ends_;
  std::string text_;
};

// UserError if the run's config.json has been changed to another model's.
void require_model_of(const std::string& saved_json, const Config& config, const fs::path& run) {
  if (saved_json.empty()) return;
  Config saved;
  read_json(saved, saved_json, "the checkpoint's config");
  const auto before = flat_fields(saved), now = flat_fields(config);
  for (size_t i = 0; i < now.size(); ++i) {
    const auto& [path, value] = now[i];
    require(!path.starts_with("model.") || before[i].second == value, "[run] expected ", path,
            " = ", before[i].second, " in ", (run / "config.json").string(),
            ", as its checkpoint has it, got ", value);
  }
}

bool is_checkpoint(const fs::path& path) { return fs::exists(path / kStateName); }

// RUN of RUN or RUN/checkpoints/step_N.
fs::path run_of(const fs::path& path) {
  if (!is_checkpoint(path)) return path;
  const fs::path run = fs::canonical(path).parent_path().parent_path();
  require(fs::exists(run / "config.json"), "[run] expected a checkpoint within its run, ",
          "RUN/checkpoints/step_N, got ", path.string());
  return run;
}

}  // namespace

StoredRun open_run(const fs::path& path) {
  const fs::path run = run_of(path);
  const auto warn = [](const std::string& sentence) {
    std::fprintf(stderr, "%s\n", sentence.c_str());
  };
  const Config config = load_run_config(run);
  require(is_checkpoint(path) || !list_checkpoints(run / "checkpoints").empty(),
          "[run] expected a checkpoint in ", run.string(), ", but there is none yet");
  StoredRun stored{config, Tokenizer::load(run / "tokenizer"), open_weights(path, warn)};
  require_model_of(config_of(stored.model.state_json), config, run);
  const std::string trained_with = tokenizer_of(stored.model.state_json);
  require(trained_with.empty() || trained_with == stored.tokenizer.fingerprint(),
          "[run] expected the tokenizer that the run was trained with in ",
          (run / "tokenizer").string(), ", got another one");
  return stored;
}

TrainedModel load_run(const fs::path& path, const std::string& device_name) {
  const torch::Device device = device_by_name(
      device_name.empty() ? load_run_config(run_of(path)).train.device : device_name);
  StoredRun stored = open_run(path);
  if (const std::string note = note_of_missing_bytes(stored.tokenizer); !note.empty())
    std::fprintf(stderr, "%s\n", note.c_str());
  TrainedModel trained{stored.config, std::move(stored.tokenizer),
                       Transformer(stored.config.model, 0, device), device};
  load_module(*trained.model, stored.model.tensors, path.string());
  trained.model->eval();
  return trained;
}

std::string write_sample(Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                         const SamplingConfig& sampling, const std::string& document_end,
                         const std::vector<std::string>& stops,
                         const std::function<bool(const std::string& part)>& watch) {
  // A document begins where another one ends.
  const std::vector<uint32_t> ids = tokenizer.encode(prompt.empty() ? document_end : prompt);
  require(!ids.empty(), "[generate] expected a prompt of at least one token, got ",
          prompt.empty() ? "an empty one" : "bytes that have none");
  std::vector<std::string> ends = stops;
  for (const std::string& stop : stops) {
    require(!stop.empty(),
            "[generate] expected a text that ends what is written, got an empty one");
  }
  if (!document_end.empty()) ends.push_back(document_end);
  TextUntil written(std::move(ends));
  std::string certain = prompt;
  size_t taken = 0, told = 0;  // of what is written, and of all
  const auto show = [&] {
    certain.append(written.text(), taken, written.certain() - taken);
    taken = written.certain();
    const std::string_view rest = std::string_view(certain).substr(told);
    const size_t whole = whole_characters(rest);
    told += whole;
    return watch(printable_utf8(rest.substr(0, whole)));
  };
  GenerateOptions options;
  options.max_tokens = sampling.max_tokens;
  options.temperature = sampling.temperature;
  options.top_k = sampling.top_k;
  options.top_p = sampling.top_p;
  options.seed = static_cast<uint64_t>(sampling.seed);
  options.on_token = [&](int64_t id) {
    // A model may have more ids than its tokenizer (a padded vocabulary); those mean nothing.
    const auto token = static_cast<uint32_t>(id);
    if (id < tokenizer.vocab_size() && !written.add(tokenizer.decode(std::span(&token, 1))))
      return false;
    return show();
  };
  const bool was_training = model->is_training();
  model->eval();
  if (show()) generate(model, std::vector<int64_t>(ids.begin(), ids.end()), options);
  model->train(was_training);
  return printable_utf8(prompt + written.text());
}

torch::Device device_by_name(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  const bool has_cuda = torch::cuda::is_available();
  if (name == "auto") return has_cuda ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  require(name == "cuda", "[device] expected auto, cpu or cuda, got ", name);
  require(has_cuda, "[device] expected a GPU for device cuda, but LibTorch finds none here");
  return torch::Device(torch::kCUDA, 0);
}

}  // namespace flashstep
