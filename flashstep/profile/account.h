// Calculators: what a model, a step, a way to divide the work cost. Each gives a table whose notes
// derive its values, in their order: "name = formula in letters = with its numbers = value". The
// formulas are those of the rooms' cost.h. Nothing is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/detail/model_config.h"
#include "flashstep/measure/table.h"
#include "flashstep/parallel/cost.h"

namespace flashstep::tools {

BenchReport account_report(measure::Table table);

// Parameters, FLOPs and memory of a pass through a model.
struct StepAccount {
  ModelConfig model = {.size = "xl"};  // what is 0 is the named size's
  int64_t batch_size = 4;              // rows of model.context_length tokens
  std::string mode = "step";           // one of workload_modes()
  std::string precision = "fp32";      // or "bf16": autocast
  std::string attention = "kernel";    // or "naive": with the matrices of weights
  std::string device = "cuda";         // decides what the operations of ops/ keep for backward
};
// UserError for a model, mode, precision, attention or device that is none.
measure::Table account_step(const StepAccount& inputs);

// What one block keeps for backward, tensor by tensor.
measure::Table account_block(const StepAccount& inputs);

// Memory of attention by the formula, forward and backward, beside a kernel without matrices.
struct AttentionAccount {
  int64_t batch_size = 8, heads = 1;
  std::vector<int64_t> contexts = {256, 1024, 4096, 8192, 16384};
  std::vector<int64_t> head_dims = {16, 32, 64, 128};
  bool causal = false;
  std::string precision = "fp32";  // or "bf16"
  double memory_gb = 80;           // 10^9 bytes: which case is the first that does not fit
};
measure::Table account_attention(const AttentionAccount& inputs);

// State and traffic of each rank: DDP, the stages of ZeRO, and whole parameters shared out.
struct ShardingAccount {
  ModelConfig model = {.size = "xl26"};
  std::vector<int64_t> ranks = {2};
  std::string sent = "fp32";  // the dtype that travels; "bf16"
};
measure::Table account_sharding(const ShardingAccount& inputs);

// All-reduce in rings, the handout's alternate algorithm among them.
struct RingAccount {
  std::vector<double> megabytes = {1, 10, 100, 1000};  // 10^6 bytes
  std::vector<int64_t> ranks = {2, 4, 6};
  double gigabytes_per_s = 450;  // NVLink 4 in one direction (NVIDIA H100 data sheet: 900 in both)
  double latency_us = 0;         // of a message besides its bytes
};
measure::Table account_ring(const RingAccount& inputs);

// Communication accounting of a stack of feed-forward layers (2025): state, accelerators that it
// fills, N_FSDP below a limit, the batch from which on a mesh is compute-bound.
struct MeshAccount {
  FeedForward layer = {.d_model = 16384, .d_ff = 53248, .matrices = 2};
  int64_t blocks = 126;
  // Of one accelerator, whose activations count; 0: the state alone. As few as keep the mesh below
  // compute-bound: 319.4.
  int64_t tokens = 320;
  double gpu_gb = 80;  // H100; 10^9 bytes
  double limit_gb = 95;
  Accelerator accelerator = {.flops_per_s = 4.6e14, .bytes_per_s = 1.8e11};  // TPU v5p
  Mesh mesh = {.data = 16, .tensor = 4, .data_links = 2, .tensor_links = 1};
};
measure::Table account_mesh(const MeshAccount& inputs);

// How many accelerators one feed-forward layer keeps busy under DP, FSDP, TP and FSDP + TP (2026).
struct BoundsAccount {
  FeedForward layer = {.d_model = 4096, .d_ff = 11008};  // the leaderboard's model
  int64_t tokens = 65536;                                // of the whole batch: 2 rows of 32768
  Accelerator accelerator = {.flops_per_s = 9.89e14,     // H200, bf16 dense (data sheet)
                             .bytes_per_s = 4.5e11};     // NVLink 4, one direction
  int64_t ranks = 8;  // for which times are given; FSDP + TP: split as evenly as divides
};
measure::Table account_bounds(const BoundsAccount& inputs);

// Schemes of recomputation in a stack of equal blocks, and the best size of a group.
struct RecomputeAccount {
  StepAccount step = {.model = {.size = "xl26", .context_length = 2048}};
  double saved_mib = 0;     // of one block, by hand; 0: by the formula
  double boundary_mib = 0;  // of a block's input; 0: by the formula
};
measure::Table account_recompute(const RecomputeAccount& inputs);

// Every account with its defaults, in the order above, by the name of its topic.
std::vector<NamedTable> all_accounts();

}  // namespace flashstep::tools
