// Parameters, floating-point operations and activations of the model: the only home of these
// formulas. Torch-free.
//
// A multiplication and an addition count as two operations. Only matrix products are counted:
// norms, rotations, gates and the softmax are below one percent at these sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/detail/model_config.h"

namespace flashstep {

// For one sequence through the forward pass.
struct ForwardFlops {
  double linear = 0;     // projections of all blocks: 2 * tokens * their parameters
  double attention = 0;  // q k^T and weights * v: 4 * H * D for each pair of query and visible key
  double head = 0;       // 2 * tokens * C * V
  double total() const { return linear + attention + head; }
};

// L blocks, width C, of all keys of a token K = C H_kv / H, feed-forward width F, vocabulary V.
struct ParameterCounts {
  int64_t embedding = 0;     // V C
  int64_t attention = 0;     // 2 C (C + K) a block
  int64_t feed_forward = 0;  // 3 C F a block
  int64_t norms = 0;         // (2 L + 1) C
  int64_t head = 0;          // V C; 0 where it is the embedding
  int64_t total() const { return embedding + attention + feed_forward + norms + head; }
};
// Here and in what is computed from it: UserError for a model of more than 9e18 parameters, which
// int64_t cannot count.
ParameterCounts parameter_counts(const ModelConfig& config);
int64_t parameter_count(const ModelConfig& config);        // the total
int64_t block_parameter_count(const ModelConfig& config);  // 2 C (C + K) + 3 C F + 2 C

// `causal` counts only the seq_len * (seq_len + 1) / 2 pairs that the mask leaves; without it all
// seq_len^2, as a kernel that masks afterwards computes them.
ForwardFlops forward_flops(const ModelConfig& config, int64_t seq_len, bool causal = true);

// Forward and backward of one training step: the backward pass does two products for each one of
// the forward pass. Recomputation inside a kernel is not counted (these are the model's FLOPs).
double step_flops(const ModelConfig& config, int64_t batch_size, int64_t seq_len,
                  bool causal = true);

// Of one update of a block's matrices by Muon (ops/cost.h).
double muon_flops_of_block(const ModelConfig& config);

// A forward pass under autograd, as far as it decides what is kept for backward.
struct PassShape {
  int64_t batch_size = 1;
  int64_t seq_len = 1;
  bool bf16 = false;             // autocast: weights stay float32, and so does the residual stream
  bool naive_attention = false;  // else a kernel that keeps a logsumexp instead of the weights
  bool weight_copies = true;     // under autocast; a CPU without bf16 products makes none
  // In bf16 a block is two functions (model/fused_block.h) whose weight copies are not the pass's,
  // and the loss makes its gradients chunk by chunk (ops/linear_cross_entropy.h).
  bool on_gpu = false;
  Recompute recompute = Recompute::kNone;  // kNorms, kInner: on a GPU in bf16
  bool short_stream = false;               // with bf16: 2 bytes an element of the residual stream
  bool float8 = false;                     // on a GPU in bf16: products of blocks in 8 bits
};

struct SavedTensor {
  std::string name;
  double bytes = 0;
};

// What one block keeps for backward, its input included (kBlock: its input alone), in the order of
// the forward pass. Weights are not counted, but their copies in bfloat16 are, which live as long.
std::vector<SavedTensor> block_saved_tensors(const ModelConfig& config, const PassShape& shape);
double block_saved_bytes(const ModelConfig& config, const PassShape& shape);

// What all blocks keep, of which the first `recomputed` are recomputed as shape.recompute says, the
// others as recompute_of_others. kBlock goes through `group` of them at once.
struct KeptBlocks {
  PassShape shape;
  int64_t recomputed = 0;
  int64_t group = 1;
};
double kept_bytes(const ModelConfig& config, const KeptBlocks& kept);
// What blocks 0 to `block` hold while this one's backward goes on.
double kept_bytes_in_backward(const ModelConfig& config, const KeptBlocks& kept, int64_t block);

// The most that one block's backward holds besides what was kept and the weights' gradients: in
// bf16 on a GPU all that its two functions make (model/fused_block.cc), else around the gates.
double block_backward_bytes(const ModelConfig& config, const PassShape& shape);

// What is kept outside of the blocks: around the final norm, and for the loss.
std::vector<SavedTensor> head_saved_tensors(const ModelConfig& config, const PassShape& shape);

// The most that the head holds, what it keeps included: while it makes the logits, on a GPU chunk
// by chunk, and when backward scales and rounds its weight's gradient
// (ops/linear_cross_entropy.cc).
double head_forward_bytes(const ModelConfig& config, const PassShape& shape);
double head_backward_bytes(const ModelConfig& config, const PassShape& shape,
                           double gradient_bytes);

// What a forward and a backward pass in bf16 on a GPU work on: products with those that are
// recomputed, attention by its two passes, the least memory traffic of all else (ops/cost.h).
struct PassWork {
  double product_flops = 0, float8_flops = 0;  // of 16 bits, of 8
  double attention_forward_flops = 0, attention_backward_flops = 0;
  double moved_bytes = 0;
  double kernels = 0;  // launched
};
PassWork pass_work(const ModelConfig& config, const KeptBlocks& kept);

// The most that a pass without a graph holds at once besides the weights, roughly: the stream and
// the largest of what attention, the feed-forward network and the head compute beside it.
double forward_temporaries_bytes(const ModelConfig& config, const PassShape& shape);

// One tensor (B, N, C) of the residual stream: float32 also under autocast.
double residual_stream_bytes(const ModelConfig& config, const PassShape& shape);

}  // namespace flashstep
