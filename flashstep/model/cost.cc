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
  const auto width = static_cast<double>(c.d_model), layers = static_cast<double>(c.num_layers);
  const double block = width * (4 * width + 3 * static_cast<double>(c.d_ff) + 2);
  const double all = layers * block + width * (2 * static_cast<double>(c.vocab_size) + 1);
  require(all < kMostParameters, "[model] expected a model of at most 9e18 parameters, got about ",
          all, " (vocab_size ", c.vocab_size, ", d_model ", c.d_model, ", d_ff ", c.d_ff,
          ", num_layers ", c.num_layers, ")");
}

// attn: four (C, C); ffn: three (C, F).
int64_t block_matrix_parameters(const ModelConfig& c) {
  require_countable(c);
  return 4 * c.d_model * c.d_model + 3 * c.d_model * c.d_ff;
}

NaiveAttentionMemory naive_memory(const ModelConfig& c, const PassShape& shape) {
  const AttentionSize size{.batches = shape.batch_size,
                           .heads = c.num_heads,
                           .kv_heads = c.num_heads,
                           .n = shape.seq_len,
                           .m = shape.seq_len,
                           .head_dim = c.d_model / c.num_heads,
                           .causal = true};
  return naive_attention_memory(size, shape.bf16 ? 2 : 4);
}

}  // namespace

ParameterCounts parameter_counts(const ModelConfig& c) {
  require_countable(c);
  return {.embedding = c.vocab_size * c.d_model,
          .attention = c.num_layers * 4 * c.d_model * c.d_model,
          .feed_forward = c.num_layers * 3 * c.d_model * c.d_ff,
          .norms = (2 * c.num_layers + 1) * c.d_model,
          .head = c.vocab_size * c.d_model};
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
  AttentionSize attention{
      .n = seq_len, .m = seq_len, .head_dim = config.d_model};  // all heads: H D
  attention.causal = causal;
  flops.attention = layers * attention_forward_flops(attention);
  flops.head = 2 * tokens * width * static_cast<double>(config.vocab_size);
  return flops;
}

double step_flops(const ModelConfig& config, int64_t batch_size, int64_t seq_len, bool causal) {
  return 3 * static_cast<double>(batch_size) * forward_flops(config, seq_len, causal).total();
}

std::vector<SavedTensor> block_saved_tensors(const ModelConfig& c, const PassShape& shape) {
  const auto tokens = static_cast<double>(shape.batch_size * shape.seq_len);
  const double element = shape.bf16 ? 2 : 4;
  const double width = tokens * static_cast<double>(c.d_model);
  const double inner = tokens * static_cast<double>(c.d_ff);
  const double stream = residual_stream_bytes(c, shape);
  const bool is_fused = shape.on_gpu && shape.bf16;
  std::vector<SavedTensor> saved;
  const auto keep = [&](const std::string& name, double bytes) { saved.push_back({name, bytes}); };
  const auto keep_norm = [&](const std::string& name) {
    keep(name + ": 1 / root mean square", 4 * tokens);
    if (!is_fused || shape.recompute == Recompute::kNone) keep(name + ": output", element * width);
  };
  keep("input", stream);
  keep_norm("ln1");
  keep("q", element * width);
  keep("k", element * width);
  keep("v", element * width);
  if (shape.naive_attention) {
    keep("mask", static_cast<double>(shape.seq_len) * static_cast<double>(shape.seq_len));
    keep("attention weights", naive_memory(c, shape).kept);
  } else {
    keep("logsumexp", 4 * tokens * static_cast<double>(c.num_heads));
  }
  keep("attention: output", element * width);
  keep("residual stream after attention", stream);
  keep_norm("ln2");
  if (is_fused && shape.recompute == Recompute::kInner) return saved;
  keep("w1 x", element * inner);
  keep("w3 x", element * inner);
  if (is_fused) return saved;
  keep("silu(w1 x) * w3 x", element * inner);
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

std::vector<SavedTensor> head_saved_tensors(const ModelConfig& c, const PassShape& shape) {
  const auto tokens = static_cast<double>(shape.batch_size * shape.seq_len);
  const double element = shape.bf16 ? 2 : 4;
  const double width = tokens * static_cast<double>(c.d_model);
  const auto vocabulary = static_cast<double>(c.vocab_size);
  std::vector<SavedTensor> saved = {{"input of the final norm", residual_stream_bytes(c, shape)},
                                    {"ln_final: 1 / root mean square", 4 * tokens}};
  if (shape.on_gpu) {
    saved.push_back({"gradient of ln_final's output", element * width});
    const int64_t rows = shape.batch_size * shape.seq_len;
    const bool is_one_chunk =
        linear_cross_entropy_rows(rows, c.vocab_size, shape.bf16 ? 2 : 4) == rows;
    saved.push_back({"gradient of lm_head",
                     (is_one_chunk ? element : 4) * static_cast<double>(c.d_model) * vocabulary});
    return saved;
  }
  saved.push_back({"ln_final: output", element * width});
  if (shape.bf16)
    saved.push_back({"lm_head in bfloat16", 2 * static_cast<double>(c.d_model) * vocabulary});
  saved.push_back({"gradient of the logits", element * tokens * vocabulary});
  return saved;
}

double forward_temporaries_bytes(const ModelConfig& c, const PassShape& shape) {
  const auto tokens = static_cast<double>(shape.batch_size * shape.seq_len);
  const double element = shape.bf16 ? 2 : 4;
  const double width = tokens * static_cast<double>(c.d_model);
  const double inner = tokens * static_cast<double>(c.d_ff);
  const double mixed =
      shape.naive_attention ? naive_memory(c, shape).forward_peak : element * width;
  const double attention = 3 * element * width + mixed;       // q, k, v
  const double feed_forward = element * (width + 3 * inner);  // ln2's output; w1 x, w3 x, gated
  const double head = 2 * element * tokens * static_cast<double>(c.vocab_size);  // and its softmax
  return residual_stream_bytes(c, shape) + std::max({attention, feed_forward, head});
}

double residual_stream_bytes(const ModelConfig& config, const PassShape& shape) {
  const double element = shape.bf16 && shape.short_stream ? 2 : 4;
  return element * static_cast<double>(shape.batch_size * shape.seq_len) *
         static_cast<double>(config.d_model);
}

}  // namespace flashstep
