// The Transformer of a run, to be used.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/model.h"
#include "flashstep/tokenizer.h"
#include "flashstep/train/config.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {

// What a run trained, its weights still in the files of a checkpoint.
struct StoredRun {
  Config config;
  Tokenizer tokenizer;
  TensorFiles model;
};

// `path`: a run, of which the newest whole checkpoint is taken, or one of its checkpoints.
// UserError if it is neither, if the run has no checkpoint yet, another model than its checkpoint
// or another tokenizer than it was trained with.
StoredRun open_run(const std::filesystem::path& path);

// The same, ready for use.
struct TrainedModel {
  Config config;
  Tokenizer tokenizer;
  Transformer model;  // in evaluation mode
  torch::Device device;
};

// `device`: "cpu", "cuda", or empty for the run's. UserError as open_run(), and for a device that
// is not there, before the weights are read.
TrainedModel load_run(const std::filesystem::path& path, const std::string& device = "");

// `prompt` and what the model writes after it, malformed UTF-8 as U+FFFD. What is written ends
// before the first `document_end` (TextConfig; empty: there is none) or text of `stops` in it,
// however many tokens that is. An empty prompt begins a document. UserError for one where
// document_end is empty, too, and for an empty text among `stops`.
// `watch` gets what of this is certain: the prompt, and behind every token what came to it, in
// whole characters. False ends it.
std::string write_sample(
    Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
    const SamplingConfig& sampling, const std::string& document_end,
    const std::vector<std::string>& stops = {},
    const std::function<bool(const std::string& part)>& watch = [](const auto&) { return true; });

// "auto", "cpu" or "cuda" to a device. UserError for cuda where there is none.
torch::Device device_by_name(const std::string& name);

}  // namespace flashstep
