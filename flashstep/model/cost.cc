#include "flashstep/model/cost.h"

#include <algorithm>

#include "flashstep/attention/cost.h"
#include "flashstep/error.h"
#include "flashstep/ops/cost.h"

namespace flashstep {
namespace {

// A little below 2^63: what is counted in int64_t, roundings of the estimate included.
constexpr double kMostParameters = 9e18;

// All products below have positive factors: none is larger than the whole.
void require_countable(const ModelConfig& c) {
  require(c.num_heads > 0, "[model] expected at least one head, got ", c.num_heads);
  const auto width = static_cast<double>(c.d_model), layers = static_cast<double>(c.num_layers);
  const double heads = 2 * width + 2 * static_cast<double>(c.kv_width());
  const double block = width * (heads + 3 * static_cast<double>(c.d_ff) + 2);
  const double all = layers * block + width * (2 * static_cast<double>(c.vocab_size) + 1);
  require(all < kMostParameters, "[model] expected a model of at most 9e18 parameters, got about ",
          all, " (vocab_size ", c.vocab_size, ", d_model ", c.d_model, ", d_ff ", c.d_ff,
          ", num_layers ", c.num_layers, ")");
}

// q_proj and output_proj (C, C), k_proj and v_proj (C, H_kv D).
int64_t attention_parameters(const ModelConfig& c) {
  return 2 * c.d_model * (c.d_model + c.kv_width());
}

// attn: four; ffn: three (C, F).
int64_t block_matrix_parameters(const ModelConfig& c) {
  require_countable(c);
  return attention_parameters(c) + 3 * c.d_model * c.d_ff;
}

AttentionSize attention_size(const ModelConfig& c, const PassShape& shape) {
  AttentionSize size = {.batches = shape.batch_size,
                        .heads = c.num_heads,
                        .kv_heads = c.kv_heads(),
                        .n = shape.seq_len,
                        .m = shape.seq_len,
                        .head_dim = c.head_dim(),
                        .causal = true};
  if (c.window > 0) size.window = c.window;
  return size;
}

NaiveAttentionMemory naive_memory(const ModelConfig& c, const PassShape& shape) {
  return naive_attention_memory(attention_size(c, shape), shape.bf16 ? 2 : 4);
}

// Elements of activations, and bytes of those that products read.
struct Sizes {
  Sizes(const ModelConfig& c, const PassShape& shape)
      : tokens(static_cast<double>(shape.batch_size * shape.seq_len)),
        element(shape.bf16 ? 2 : 4),
        width(tokens * static_cast<double>(c.d_model)),
        keys(tokens * static_cast<double>(c.kv_width())),
        inner(tokens * static_cast<double>(c.d_ff)),
        weight(static_cast<double>(c.d_model) * static_cast<double>(c.vocab_size)),
        is_fused(shape.on_gpu && shape.bf16),
        in_float8(is_fused && shape.float8) {}
  double tokens, element, width, keys, inner;
  double weight;  // elements of the head's
  bool is_fused, in_float8;
};

// What products of 8 bits add to a block's traffic. A matrix that a kernel has noted the largest
// magnitude of is read (2 bytes an element) and written by rows and by columns (1 each); others are
// read once more. Forward: both norms' outputs, attention's, h by rows, the weights by rows.
// Backward: the stream's two gradients, queries', keys' and values', the weights by columns;
// SwiGLU's reads its inputs twice, and writes 5 bytes where it wrote 6.
struct Float8Traffic {
  Float8Traffic(const ModelConfig& c, int64_t tokens) {
    const auto rows = static_cast<double>(tokens), width = static_cast<double>(c.d_model),
               inner = static_cast<double>(c.d_ff);
    const auto weights = static_cast<double>(block_matrix_parameters(c));
    forward = rows * ((4 + 4 + 6) * width + 3 * inner) + 5 * weights;
    backward =
        rows * ((6 + 4) * width + 6 * (width + 2 * static_cast<double>(c.kv_width())) + 5 * inner) +
        3 * weights;
  }
  double forward, backward;
};

PassShape not_recomputed(PassShape shape) {
  shape.recompute = Recompute::kNone;
  return shape;
}

PassShape of_others(PassShape shape) {
  shape.recompute = recompute_of_others(shape.recompute);
  return shape;
}

// Traffic that recomputing one block adds: its norms (r2, w2 each), its gates' norm alone; a whole
// block all of forward.
double recompute_traffic(const ModelConfig& c, const PassShape& shape) {
  const int64_t tokens = shape.batch_size * shape.seq_len, width = tokens * c.d_model;
  const double norms = 2 * norm_forward_bytes(tokens, c.d_model, 2);
  switch (shape.recompute) {
    case Recompute::kNone:
      return 0;
    case Recompute::kNorms:
    case Recompute::kInner:
      return norms;
    case Recompute::kBlock:
      return norms + rope_bytes(width + tokens * c.kv_width(), 2, false) +
             swiglu_bytes(tokens * c.d_ff, 2, false);
  }
  return 0;
}

}  // namespace

ParameterCounts parameter_counts(const ModelConfig& c) {
  require_countable(c);
  return {.embedding = c.vocab_size * c.d_model,
          .attention = c.num_layers * attention_parameters(c),
          .feed_forward = c.num_layers * 3 * c.d_model * c.d_ff,
          .norms = (2 * c.num_layers + 1) * c.d_model,
          .head = c.tie_embeddings ? 0 : c.vocab_size * c.d_model};
}

int64_t parameter_count(const ModelConfig& config) { return parameter_counts(config).total(); }

int64_t block_parameter_count(const ModelConfig& config) {
  return block_matrix_parameters(config) + 2 * config.d_model;
}

ForwardFlops forward_flops(const ModelConfig& config, int64_t seq_len, bool causal) {
  const auto tokens = static_cast<double>(seq_len);
  const auto layers = static_cast<double>(config.num_layers);
  const auto width = static_cast<double>(config.d_model);  // H * D
  ForwardFlops flops;
  flops.linear = 2 * tokens * layers * static_cast<double>(block_matrix_parameters(config));
  AttentionSize attention = attention_size(config, {.batch_size = 1, .seq_len = seq_len});
  attention.causal = causal;
  flops.attention = layers * attention_forward_flops(attention);
  flops.head = 2 * tokens * width * static_cast<double>(config.vocab_size);
  return flops;
}

double step_flops(const ModelConfig& config, int64_t batch_size, int64_t seq_len, bool causal) {
  return 3 * static_cast<double>(batch_size) * forward_flops(config, seq_len, causal).total();
}

double muon_flops_of_block(const ModelConfig& model) {
  const int64_t d = model.d_model, of_keys = model.kv_heads() * model.head_dim();
  return 2 * muon_flops(d, d) + 2 * muon_flops(of_keys, d) + 3 * muon_flops(model.d_ff, d);
}

std::vector<SavedTensor> block_saved_tensors(const ModelConfig& c, const PassShape& shape) {
  const Sizes n(c, shape);
  const double stream = residual_stream_bytes(c, shape);
  std::vector<SavedTensor> saved;
  const auto keep = [&](const std::string& name, double bytes) { saved.push_back({name, bytes}); };
  const auto keep_norm = [&](const std::string& name) {
    keep(name + ": 1 / root mean square", 4 * n.tokens);
    if (!n.is_fused || shape.recompute == Recompute::kNone)
      keep(name + ": output", (n.in_float8 ? 1 : n.element) * n.width);
  };
  keep("input", stream);
  if (shape.recompute == Recompute::kBlock) return saved;
  keep_norm("ln1");
  keep("q", n.element * n.width);
  keep("k", n.element * n.keys);
  keep("v", n.element * n.keys);
  if (shape.naive_attention) {
    keep("mask", static_cast<double>(shape.seq_len) * static_cast<double>(shape.seq_len));
    keep("attention weights", naive_memory(c, shape).kept);
  } else {
    keep("logsumexp", 4 * n.tokens * static_cast<double>(c.num_heads));
  }
  keep("attention: output", n.element * n.width);
  if (n.in_float8) keep("attention: output in 8 bits", n.width);
  keep("residual stream after attention", stream);
  keep_norm("ln2");
  if (n.is_fused && shape.recompute == Recompute::kInner) return saved;
  keep("w1 x", n.element * n.inner);
  keep("w3 x", n.element * n.inner);
  if (n.is_fused) return saved;
  keep("silu(w1 x) * w3 x", n.element * n.inner);
  if (shape.bf16 && shape.weight_copies) {
    keep("weights in bfloat16", 2 * static_cast<double>(block_matrix_parameters(c)));
  }
  return saved;
}

double block_saved_bytes(const ModelConfig& config, const PassShape& shape) {
  double bytes = 0;
  for (const SavedTensor& tensor : block_saved_tensors(config, shape)) bytes += tensor.bytes;
  return bytes;
}

double kept_bytes(const ModelConfig& config, const KeptBlocks& kept) {
  const int64_t all = config.num_layers, recomputed = std::min(kept.recomputed, all);
  const bool in_groups = kept.shape.recompute == Recompute::kBlock;
  const int64_t inputs = in_groups ? (recomputed + kept.group - 1) / kept.group : recomputed;
  return static_cast<double>(inputs) * block_saved_bytes(config, kept.shape) +
         static_cast<double>(all - recomputed) * block_saved_bytes(config, of_others(kept.shape));
}

double kept_bytes_in_backward(const ModelConfig& config, const KeptBlocks& kept, int64_t block) {
  const double whole = block_saved_bytes(config, not_recomputed(kept.shape));
  const double less = block_saved_bytes(config, kept.shape);
  const int64_t recomputed = std::min(kept.recomputed, config.num_layers);
  if (kept.shape.recompute != Recompute::kBlock || block >= recomputed) {
    KeptBlocks behind = kept;
    behind.recomputed = std::min(recomputed, block + 1);
    ModelConfig part = config;
    part.num_layers = block + 1;
    return kept_bytes(part, behind);
  }
  const int64_t groups_before = block / kept.group;  // the group's own input is its first block's
  return static_cast<double>(groups_before) * less +
         static_cast<double>(block - groups_before * kept.group + 1) * whole;
}

double block_backward_bytes(const ModelConfig& c, const PassShape& shape) {
  const Sizes n(c, shape);
  const double stream = residual_stream_bytes(c, shape);
  if (!n.is_fused) {  // the gates' gradients and the gated values'; the stream's
    const double naive = shape.naive_attention
                             ? naive_memory(c, shape).backward_peak - naive_memory(c, shape).kept
                             : 0;
    return stream + std::max(3 * n.element * n.inner, naive);
  }
  // The stream's gradient and the one after attention; dh and both gates' gradients; the norm's and
  // attention's. Rounded, where the stream is float32.
  double bytes = 2 * stream + n.element * (3 * n.inner + 2 * n.width);
  if (!shape.short_stream) bytes += 2 * n.element * n.width;
  if (shape.recompute == Recompute::kNorms || shape.recompute == Recompute::kInner)
    bytes += n.element * n.width;
  if (shape.recompute == Recompute::kInner) bytes += 2 * n.element * n.inner;
  // Both gates' gradients by rows and by columns, h by columns, the stream's gradients; the
  // weights.
  if (n.in_float8) {
    bytes += n.inner + 2 * n.width + static_cast<double>(block_matrix_parameters(c));
    if (shape.recompute == Recompute::kNorms) bytes += n.width;  // the norm's output by columns
    if (shape.recompute == Recompute::kInner)  // and by rows, as the gates' weights
      bytes += 2 * n.width + 2 * static_cast<double>(c.d_model * c.d_ff);
  }
  return bytes;
}

// Rows of logits that are there at once. On a CPU those of 16 bits come whole.
int64_t rows_of_logits(const ModelConfig& c, const PassShape& shape) {
  const int64_t rows = shape.batch_size * shape.seq_len;
  if (shape.on_gpu) return linear_cross_entropy_rows(rows, c.vocab_size, shape.bf16 ? 2 : 4);
  return shape.bf16 ? rows : linear_cross_entropy_rows_on_cpu(rows, c.vocab_size);
}

std::vector<SavedTensor> head_saved_tensors(const ModelConfig& c, const PassShape& shape) {
  const Sizes n(c, shape);
  std::vector<SavedTensor> saved = {{"input of the final norm", residual_stream_bytes(c, shape)},
                                    {"ln_final: 1 / root mean square", 4 * n.tokens}};
  if (shape.on_gpu || !shape.bf16) {
    saved.push_back({"gradient of ln_final's output", n.element * n.width});
    const bool is_one_chunk = rows_of_logits(c, shape) == shape.batch_size * shape.seq_len;
    saved.push_back({"gradient of lm_head", (is_one_chunk ? n.element : 4) * n.weight});
    return saved;
  }
  saved.push_back({"ln_final: output", n.element * n.width});
  saved.push_back({"lm_head in bfloat16", 2 * n.weight});
  saved.push_back(
      {"gradient of the logits", n.element * n.tokens * static_cast<double>(c.vocab_size)});
  return saved;
}

double head_forward_bytes(const ModelConfig& c, const PassShape& shape) {
  const Sizes n(c, shape);
  double bytes = 0;
  for (const SavedTensor& tensor : head_saved_tensors(c, shape)) bytes += tensor.bytes;
  const double logits = n.element * static_cast<double>(rows_of_logits(c, shape) * c.vocab_size);
  if (!shape.on_gpu && shape.bf16) return bytes + logits;
  const bool is_padded = shape.on_gpu && c.vocab_size % 8 != 0;  // then the weight is copied
  return bytes + n.element * n.width + logits + (is_padded ? n.element * n.weight : 0);
}

double head_backward_bytes(const ModelConfig& c, const PassShape& shape, double gradient_bytes) {
  const Sizes n(c, shape);
  double bytes = n.element * n.width + 4 * n.weight;  // of the input, of the weight
  if (gradient_bytes < 4) bytes += gradient_bytes * n.weight;
  for (const SavedTensor& tensor : head_saved_tensors(c, shape)) bytes += tensor.bytes;
  return bytes;
}

PassWork pass_work(const ModelConfig& c, const KeptBlocks& kept) {
  const PassShape& shape = kept.shape;
  const int64_t tokens = shape.batch_size * shape.seq_len, width = tokens * c.d_model;
  const auto blocks = static_cast<double>(c.num_layers);
  const auto recomputed = static_cast<double>(std::min(kept.recomputed, c.num_layers));
  const double rows = 2 * static_cast<double>(tokens);
  const AttentionSize attention = attention_size(c, shape);
  const bool again = shape.recompute == Recompute::kBlock;
  PassWork work;
  work.product_flops = linear_cross_entropy_flops(tokens, c.d_model, c.vocab_size, true);
  double& of_blocks = shape.float8 ? work.float8_flops : work.product_flops;
  of_blocks += 3 * rows * blocks * static_cast<double>(block_matrix_parameters(c));
  if (again) of_blocks += rows * recomputed * static_cast<double>(block_matrix_parameters(c));
  if (shape.recompute == Recompute::kInner)
    of_blocks += rows * recomputed * static_cast<double>(2 * c.d_model * c.d_ff);
  work.attention_forward_flops =
      (blocks + (again ? recomputed : 0)) * attention_forward_flops(attention);
  work.attention_backward_flops = blocks * attention_backward_flops(attention);

  // Two norms, of which backward adds the stream's gradient (one tensor read more); queries and
  // keys turned, whose gradients attention turns back as it stores them; gates, of which backward
  // also writes the gated values.
  const double norm = norm_forward_bytes(tokens, c.d_model, 2) +
                      norm_backward_bytes(tokens, c.d_model, 2) + 2.0 * static_cast<double>(width);
  const double gates =
      swiglu_bytes(tokens * c.d_ff, 2, true) + 2.0 * static_cast<double>(tokens * c.d_ff);
  // A float32 stream: 2 bytes more of each of the two tensors, read or written 12 times in all.
  const double wider = shape.short_stream ? 0 : 12 * 2.0 * static_cast<double>(width);
  const int64_t chunks = (tokens - 1) / linear_cross_entropy_rows(tokens, c.vocab_size, 2) + 1;
  const double head = cross_entropy_bytes(tokens * c.vocab_size, 2, true) +
                      embedding_bytes(tokens, c.d_model, 0, 2, true) + norm;
  // A chunk adds to the weight's gradient in float32.
  const double sums =
      chunks == 1 ? 0
                  : static_cast<double>(chunks) * 8 * static_cast<double>(c.vocab_size * c.d_model);
  work.moved_bytes =
      blocks * (2 * norm + rope_bytes(width + tokens * c.kv_width(), 2, false) + gates + wider) +
      recomputed * recompute_traffic(c, shape) +
      (blocks - recomputed) * recompute_traffic(c, of_others(shape)) + head + sums;
  // Of a block: 12 products, 6 kernels of norms, 1 of rope, 2 of gates, attention's 4, 2 copies.
  work.kernels = 27 * blocks + (again ? 11 * recomputed : 0) + 40;
  if (shape.float8) {  // and 35 that look for largest magnitudes and round, 21 of them in forward
    const Float8Traffic rounding(c, tokens);
    work.moved_bytes += blocks * (rounding.forward + rounding.backward) +
                        (again ? recomputed * rounding.forward : 0);
    work.kernels += 35 * blocks + (again ? 21 * recomputed : 0);
  }
  return work;
}

double forward_temporaries_bytes(const ModelConfig& c, const PassShape& shape) {
  const Sizes n(c, shape);
  const double mixed =
      shape.naive_attention ? naive_memory(c, shape).forward_peak : n.element * n.width;
  const double attention = n.element * (n.width + 2 * n.keys) + mixed;  // q, k, v
  const double feed_forward =
      n.element * (n.width + 3 * n.inner);  // ln2's output; w1 x, w3 x, gated
  const double head = n.element * static_cast<double>(rows_of_logits(c, shape) * c.vocab_size);
  return residual_stream_bytes(c, shape) + std::max({attention, feed_forward, head});
}

double residual_stream_bytes(const ModelConfig& config, const PassShape& shape) {
  const double element = shape.bf16 && shape.short_stream ? 2 : 4;
  return element * static_cast<double>(shape.batch_size * shape.seq_len) *
         static_cast<double>(config.d_model);
}

}  // namespace flashstep
