// What each file of this room adds to the library's block of registrations (library.cc).
#pragma once

#include <torch/library.h>

namespace flashstep::bindings {

void register_attention(torch::Library& library);          // attention
void register_layer_operators(torch::Library& library);    // rms_norm, swiglu, rope
void register_float8_operators(torch::Library& library);   // float8_linear
void register_loss_operators(torch::Library& library);     // products and the loss
void register_training(torch::Library& library);           // norms, AdamW, rates, initialization
void register_group(torch::Library& library);              // Group
void register_data_parallel(torch::Library& library);      // GradientMeans
void register_files(torch::Library& library);              // CheckpointFiles
void register_sharded_optimizer(torch::Library& library);  // OptimizerShards
void register_fully_sharded(torch::Library& library);      // ShardedUnits
void register_ranges(torch::Library& library);             // Ranges
void register_text(torch::Library& library);               // Tokenizer, batches

}  // namespace flashstep::bindings
