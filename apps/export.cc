// flashstep export: the weights of a run, however many ranks wrote them, in one safetensors file,
// or as a model that other programs know.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "apps/commands.h"
#include "flashstep/base/places.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/safetensors_format.h"
#include "flashstep/error.h"
#include "flashstep/train/llama_format.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/stored_checkpoint.h"
#include "flashstep/train/trained_model.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

at::ScalarType dtype_by_name(const std::string& name) {
  return name == "fp32" ? at::kFloat : name == "bf16" ? at::kBFloat16 : at::kHalf;
}

std::string torch_name(at::ScalarType type) {
  for (const auto& [known, name] : {std::pair{at::kFloat, "float32"},
                                    {at::kBFloat16, "bfloat16"},
                                    {at::kHalf, "float16"},
                                    {at::kDouble, "float64"}})
    if (type == known) return name;
  throw UserError(
      flashstep::str("[export] expected weights of float32, bfloat16, float16 or float64, or "
                     "--dtype, got ",
                     type));
}

// Writes them in `dtype`, empty: as they are, and says what became of them.
void write_weights(StoredTensors weights, const fs::path& out, const std::string& dtype) {
  int64_t parameters = 0;
  std::set<std::string> overflown;  // tensors with numbers that the dtype does not reach
  for (StoredTensor& tensor : weights) {
    parameters += tensor.form.numel();
    if (dtype.empty() || !tensor.form.is_floating_point()) continue;
    const at::ScalarType type = dtype_by_name(dtype);
    tensor.read = [&overflown, type, read = tensor.read, name = tensor.name](int64_t begin,
                                                                             int64_t end) {
      const at::Tensor x = read(begin, end);
      if ((x.isfinite() & ~x.to(type).isfinite()).any().item<bool>()) overflown.insert(name);
      return x;
    };
    tensor = tensor.to(type);
  }
  const WrittenFile file = write_stored(out, weights, {{"format", "pt"}});
  if (!overflown.empty()) {
    std::fprintf(stderr, "NOTE: numbers beyond the largest of %s became infinite in %s\n",
                 dtype.c_str(), join({overflown.begin(), overflown.end()}).c_str());
  }
  std::printf("%s: %s tensors, %s parameters, %s bytes\n", out.c_str(),
              with_commas(static_cast<int64_t>(weights.size())).c_str(),
              with_commas(parameters).c_str(),
              with_commas(static_cast<int64_t>(file.size_bytes)).c_str());
}

void export_file(const std::string& from, const std::string& out, const std::string& dtype) {
  require_place_for_file(out);
  require_other_file(from, out);
  require_no_file_of_run(out);
  const auto warn = [](const std::string& sentence) {
    std::fprintf(stderr, "%s\n", sentence.c_str());
  };
  TensorFiles files = open_weights(from, warn);
  for (const fs::path& path : files.paths) require_other_file(path, out);
  require_same_kind(out, "a .safetensors file", [&](std::string_view bytes) {
    static_cast<void>(parse_safetensors_header(bytes, out));
  });
  write_weights(std::move(files.tensors), out, dtype);
}

// What fails, or is stopped, leaves no config.json, without which nobody takes it for a model.
void export_llama(const std::string& run, const std::string& directory, const std::string& dtype) {
  const fs::path out = directory;
  require_place_for_directory(out);
  require(!fs::exists(out) || fs::is_empty(out),
          "[export] expected a new directory, or an empty one, got ", out.string(),
          ", in which there is something");
  StoredRun stored = open_run(run);
  const ModelConfig& model = stored.config.model;
  const std::string& end = stored.config.text.document_end;
  if (model.document_end >= 0)
    std::fprintf(stderr,
                 "[export] NOTE: the model was trained on separate documents (model.document_end), "
                 "of which transformers does not know: give it one at a time\n");
  StoredTensors weights = llama_tensors(std::move(stored.model.tensors), model);
  const auto type = dtype.empty() ? weights.front().form.scalar_type() : dtype_by_name(dtype);
  const std::string name = torch_name(type);
  const bool was_there = fs::exists(out);
  make_directories(out);
  try {
    write_weights(std::move(weights), out / "model.safetensors", dtype);
    stored.tokenizer.save(out);
    write_files(
        {{out / "tokenizer_config.json", llama_tokenizer_config(model, stored.tokenizer, end)},
         {out / "config.json", llama_config(model, stored.tokenizer, end, name)}});
  } catch (...) {  // it was empty: all that is there was written here
    std::error_code error;
    for (const char* file : {"model.safetensors", "tokenizer.json", "vocab.json", "merges.txt",
                             "tokenizer_config.json"})
      fs::remove(out / file, error);
    if (!was_there) fs::remove(out, error);
    throw;
  }
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "Write a run's weights, for other programs");
  struct Arguments {
    std::string from, out, dtype, format;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->from, "Run directory, or one of its checkpoints")
      ->required()
      ->option_text("RUN");
  command
      ->add_option("--out", arguments->out,
                   "The file to write, whole or not at all; of llama a directory")
      ->required()
      ->option_text("FILE.safetensors|DIR REQUIRED");
  command
      ->add_option(
          "--format", arguments->format,
          "safetensors: one file; llama: a directory, with the tokenizer, that Hugging Face's "
          "transformers read as LlamaForCausalLM, with a window as MistralForCausalLM")
      ->check(CLI::IsMember({"safetensors", "llama"}))
      ->default_val("safetensors");
  command->add_option("--dtype", arguments->dtype, "fp32, bf16, fp16; default: as they are")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->callback([arguments] {
    const auto write = arguments->format == "llama" ? export_llama : export_file;
    write(arguments->from, arguments->out, arguments->dtype);
  });
}

}  // namespace flashstep::apps
