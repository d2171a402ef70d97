// flashstep export: the weights of a run in one safetensors file, however many ranks wrote them.
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
#include "flashstep/train/run_directory.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

void export_command(const std::string& from, const std::string& out, const std::string& dtype) {
  require_place_for_file(out);
  require_other_file(from, out);
  require_no_file_of_run(out);
  const auto warn = [](const std::string& sentence) {
    std::fprintf(stderr, "%s\n", sentence.c_str());
  };
  TensorFiles files = open_weights(from, warn);
  for (const fs::path& path : files.paths) require_other_file(path, out);
  StoredTensors weights = std::move(files.tensors);
  int64_t parameters = 0;
  std::set<std::string> overflown;  // tensors with numbers that the dtype does not reach
  for (StoredTensor& tensor : weights) {
    parameters += tensor.form.numel();
    if (dtype.empty() || !tensor.form.is_floating_point()) continue;
    const at::ScalarType type = dtype == "fp32"   ? at::kFloat
                                : dtype == "bf16" ? at::kBFloat16
                                                  : at::kHalf;
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

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "Write a run's weights as one safetensors file");
  struct Arguments {
    std::string from, out, dtype;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->from, "Run directory, or one of its checkpoints")
      ->required()
      ->option_text("RUN");
  command->add_option("--out", arguments->out, "The file to write, whole or not at all")
      ->required()
      ->option_text("FILE.safetensors REQUIRED");
  command->add_option("--dtype", arguments->dtype, "fp32, bf16, fp16; default: as they are")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->callback(
      [arguments] { export_command(arguments->from, arguments->out, arguments->dtype); });
}

}  // namespace flashstep::apps
