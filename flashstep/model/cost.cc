#include "flashstep/model/cost.h"

#include "flashstep/attention/cost.h"

namespace flashstep {
namespace {

// attn: four (C, C); ffn: three (C, F).
int64_t block_matrix_parameters(const ModelConfig& c) {
  return 4 * c.d_model * c.d_model + 3 * c.d_model * c.d_ff;
}

}  // namespace

int64_t parameter_count(const ModelConfig& config) {
  const int64_t norms = (2 * config.num_layers + 1) * config.d_model;
  return 2 * config.vocab_size * config.d_model +
         config.num_layers * block_matrix_parameters(config) + norms;
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

}  // namespace flashstep
