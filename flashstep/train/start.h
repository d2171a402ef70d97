// What comes before a run's first step: devices, data and weights, on all of its ranks.
#pragma once

#include <torch/types.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/environment.h"
#include "flashstep/group.h"
#include "flashstep/parallel/stored_tensors.h"
#include "flashstep/tokenizer.h"
#include "flashstep/train/config.h"
#include "flashstep/train/pipeline.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/run_directory.h"

namespace flashstep {

Timeouts timeouts(const ParallelConfig& config);

torch::Device device_of_rank(const TrainConfig& config, const Environment& environment);

// Before anything is made.
void check_start(const Config& config, torch::Device device, const Group* group);

// The run keeps the tokenizer that its ids mean; another one would make its weights nonsense. A run
// that was stopped before its first checkpoint has none yet, and takes what it is given.
void keep_tokenizer(const Config& config, const Tokenizer& tokenizer, const RunDirectory& run);

// What a checkpoint would refuse is refused before the data, which other runs may share, are made
// anew. Of a run that has a checkpoint, train.init_from is said once, when it begins: it becomes
// the run's, and so does a warm-up that is not given. True if text or tokenizer have other paths
// than when the run began.
bool check_saved_config(Config& config, const RunDirectory& run, int world_size);

// The same on all ranks; `config` becomes what they say about the model. `read_tokens`: as
// PrepareOptions have it, on the first rank.
PreparedData make_data(Config& config, const TrainOptions& options, const Environment& environment,
                       Group* group, const std::string& read_tokens = "");

// Those of train.init_from, on all ranks; none if a checkpoint's come later, when the loop begins.
// `directory`: null on all ranks but the first. UserError for weights that were trained with
// another tokenizer or number of heads.
StoredTensors initial_weights(const Config& config, const Tokenizer& tokenizer, const Group* group,
                              const RunDirectory* directory, const WarnFunction& warn);

}  // namespace flashstep
