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

// A run of its model and tokenizer that trains on from its weights, at a rate that does not undo
// them.
Config config_of_run(const LlamaModel& from, const RunDirectory& run) {
  Config config;
  config.model = from.model;
  config.text.document_end = from.document_end;
  config.tokenizer.path = fs::absolute(run.tokenizer());
  config.tokenizer.vocab_size = from.tokenizer.vocab_size();
  config.tokenizer.special_tokens = from.tokenizer.special_tokens();
  config.tokenizer.split_digits = from.tokenizer.vocabulary().split_digits;
  config.train.init_from = fs::absolute(run.path());
  config.schedule.learning_rate = 1e-4;
  config.schedule.min_learning_rate = 1e-5;
  return config;
}

// As step 0 of the run. Returns the number of parameters.
int64_t write_weights(const TensorFiles& weights, const RunDirectory& run,
                      const std::string& state_json) {
  StoredTensors tensors = weights.tensors;
  uint64_t done = 0, total = 0;
  int64_t parameters = 0;
  for (const StoredTensor& tensor : tensors) {
    parameters += tensor.form.numel();
    total += tensor.form.nbytes();
  }
  ProgressBar bar("weights", ProgressBar::Unit::kBytes);
  const ProgressFunction progress =
      interruptible(bar.callback(), "[import] interrupted; nothing was written");
  for (StoredTensor& tensor : tensors) {
    tensor.read = [&, read = tensor.read](int64_t begin, int64_t end) {
      const at::Tensor part = read(begin, end);
      progress(done += part.nbytes(), total);
      return part;
    };
  }
  UnfinishedCheckpoint checkpoint(run.checkpoints(), 0);
  checkpoint.begin();
  const char* const name = "model.safetensors";
  const WrittenFile file = write_stored(checkpoint.path() / name, tensors, {{"format", "pt"}});
  write_file(
      checkpoint.path() / kStateName,
      format_checkpoint_state({0, {{name, "model", file.size_bytes, file.hash}}, state_json}));
  remove_trees(checkpoint.finish(/*keep=*/0));
  bar.finish();
  return parameters;
}

void import_model(const std::string& directory, std::string to) {
  const LlamaModel from = open_llama(directory);
  if (to.empty()) to = default_run_directory(fs::canonical(directory).filename(), false);
  const SignalGuard guard;
  const RunDirectory run(to, /*resume=*/false);
  const Config config = config_of_run(from, run);
  save_tokenizer(from.tokenizer, run.tokenizer());
  const int64_t parameters = write_weights(
      from.weights, run, state_of_weights(write_json(config), from.tokenizer.fingerprint()));
  write_file(run.config(), write_json(config));
  const ModelConfig& model = from.model;
  std::printf("%s: %s parameters, %lld layers, width %lld, context %s, %s tokens\n", to.c_str(),
              with_commas(parameters).c_str(), static_cast<long long>(model.num_layers),
              static_cast<long long>(model.d_model), with_commas(model.context_length).c_str(),
              with_commas(from.tokenizer.vocab_size()).c_str());
  if (const std::string note = note_of_missing_bytes(from.tokenizer); !note.empty())
    std::fprintf(stderr, "%s\n", note.c_str());
}

}  // namespace

void add_import(CLI::App& app) {
  auto* command = app.add_subcommand(
      "import", "Make a run of a Llama or Mistral model of Hugging Face's transformers");
  struct Arguments {
    std::string from, run;
  };
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("directory", arguments->from,
                   "Directory with config.json, model.safetensors and tokenizer.json")
      ->required()
      ->option_text("DIR");
  command->add_option("--run", arguments->run,
                      "Directory of the run; default: runs/NAME, after the directory's name");
  command->callback([arguments] { import_model(arguments->from, arguments->run); });
}

}  // namespace flashstep::apps
