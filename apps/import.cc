// flashstep import: a model of Hugging Face's transformers as a run, to sample, evaluate and train
// on.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "apps/commands.h"
#include "flashstep/base/places.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_folder.h"
#include "flashstep/train/checkpoint_state.h"
#include "flashstep/train/llama_format.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

// A config that trains on from the run's weights, at a rate that does not undo them.
std::string config_of_run(const LlamaModel& from, const RunDirectory& run) {
  Config config;
  config.model = from.model;
  config.text.document_end = from.document_end;
  for (std::string& prompt : config.sampling.prompts) prompt = from.tokenizer.bos_token() + prompt;
  config.tokenizer.path = fs::absolute(run.tokenizer());
  config.train.init_from = fs::absolute(run.path());
  config.schedule.learning_rate = 1e-4;
  config.schedule.min_learning_rate = 1e-5;
  check_config(config);
  return write_json(config);
}

// How they are read, with a progress bar.
StoredTensors with_progress(StoredTensors tensors, const ProgressFunction& progress) {
  const auto done = std::make_shared<uint64_t>(0);
  uint64_t total = 0;
  for (const StoredTensor& tensor : tensors) total += tensor.form.nbytes();
  for (StoredTensor& tensor : tensors) {
    tensor.read = [=, read = tensor.read](int64_t begin, int64_t end) {
      at::Tensor part = read(begin, end);
      progress(*done += part.nbytes(), total);
      return part;
    };
  }
  return tensors;
}

// Everything but what makes it a run is written first, and goes again where that fails.
void write_run(const LlamaModel& from, const RunDirectory& run) {
  const std::string config = config_of_run(from, run);
  ProgressBar bar("weights", ProgressBar::Unit::kBytes);
  const auto progress = interruptible(bar.callback(), "[import] interrupted; no run was made");
  UnfinishedCheckpoint checkpoint(run.checkpoints(), 0);
  checkpoint.begin();
  const char* const name = "model.safetensors";
  const WrittenFile file = write_stored(
      checkpoint.path() / name, with_progress(from.weights.tensors, progress), {{"format", "pt"}});
  bar.finish();
  const std::string state = state_of_weights(config, from.tokenizer.fingerprint());
  write_file(checkpoint.path() / kStateName,
             format_checkpoint_state({0, {{name, "model", file.size_bytes, file.hash}}, state}));
  save_tokenizer(from.tokenizer, run.tokenizer());
  write_file(run.config(), config);
  remove_trees(checkpoint.finish(/*keep=*/0));
}

void import_model(const std::string& directory, std::string to) {
  const LlamaModel from = open_llama(directory);
  if (to.empty()) to = default_run_directory(fs::canonical(directory).filename(), false);
  const SignalGuard guard;
  const RunDirectory run(to, /*resume=*/false);
  require(list_checkpoints(run.checkpoints()).empty(), "[import] expected a directory without ",
          "checkpoints, got ", to);
  write_run(from, run);
  int64_t parameters = 0;
  for (const StoredTensor& tensor : from.weights.tensors) parameters += tensor.form.numel();
  std::printf("%s: %s parameters, %lld layers, width %lld, context %s, %s tokens\n", to.c_str(),
              with_commas(parameters).c_str(), static_cast<long long>(from.model.num_layers),
              static_cast<long long>(from.model.d_model),
              with_commas(from.model.context_length).c_str(),
              with_commas(from.tokenizer.vocab_size()).c_str());
  if (const std::string note = note_of_missing_bytes(from.tokenizer); !note.empty())
    std::fprintf(stderr, "%s\n", note.c_str());
  if (from.document_end.empty())
    std::fprintf(stderr,
                 "[import] NOTE: its eos_token_id is no special token: to train on, set "
                 "text.document_end\n");
  if (from.tie_was_undone)
    std::fprintf(stderr,
                 "[import] NOTE: tie_word_embeddings is true, but lm_head.weight differs from the "
                 "embedding: both are kept, as transformers do\n");
  for (const std::string& end : from.other_ends)
    std::fprintf(stderr, "[import] NOTE: its texts may end with %s, too: generate --stop '%s'\n",
                 shown_on(stderr, end).c_str(), shown_on(stderr, end).c_str());
  if (const std::string bos = from.tokenizer.bos_token(); !bos.empty())
    std::fprintf(stderr,
                 "[import] NOTE: its texts begin with %s: write it into prompts, and before the "
                 "documents to train on\n",
                 shown_on(stderr, bos).c_str());
}

}  // namespace

void add_import(CLI::App& app) {
  auto* command = app.add_subcommand(
      "import",
      "Make a run of a Hugging Face model of Llama's architecture, such as SmolLM2 or Llama 3");
  struct Arguments {
    std::string from, run;
  };
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("directory", arguments->from,
                   "Directory of a llama or mistral: config.json, model.safetensors, and a "
                   "tokenizer.json of byte-level BPE with GPT-2's or GPT-4's words")
      ->required()
      ->option_text("DIR");
  command
      ->add_option("--run", arguments->run,
                   "Run directory (default: runs/DIR, or the next free runs/DIR-2, ...)")
      ->option_text("DIR");
  command->callback([arguments] { import_model(arguments->from, arguments->run); });
}

}  // namespace flashstep::apps
