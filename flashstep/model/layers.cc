#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/fused_block.h"
#include "flashstep/ops.h"
#include "flashstep/profiling.h"

namespace flashstep {

LinearImpl::LinearImpl(int64_t in, int64_t out, const torch::TensorOptions& options)
    : weight(register_parameter("weight", torch::empty({out, in}, options))) {}

LinearImpl::LinearImpl(at::Tensor tied) : weight(register_parameter("weight", std::move(tied))) {}

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t width, const torch::TensorOptions& options)
    : weight(register_parameter("weight", torch::empty({rows, width}, options))) {}

RmsNormImpl::RmsNormImpl(int64_t width, double epsilon, const torch::TensorOptions& options)
    : weight(register_parameter("weight", torch::ones({width}, options))), epsilon_(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const ScopedRange range("norm");
  return rms_norm(x, weight, epsilon_);
}

CausalSelfAttentionImpl::CausalSelfAttentionImpl(const ModelConfig& config,
                                                 const torch::TensorOptions& options)
    : num_heads_(config.num_heads),
      num_kv_heads_(config.kv_heads()),
      window_(config.attention_window()),
      implementation_(config.attention) {
  const int64_t c = config.d_model, of_keys = config.kv_width();
  q_proj = register_module("q_proj", Linear(c, c, options));
  k_proj = register_module("k_proj", Linear(c, of_keys, options));
  v_proj = register_module("v_proj", Linear(c, of_keys, options));
  output_proj = register_module("output_proj", Linear(c, c, options));
}

namespace {

// Appends k and v to the cache; afterwards they are all keys and values so far.
void extend(LayerCache& cache, at::Tensor& k, at::Tensor& v) {
  const int64_t added = k.size(2), length = cache.length + added;
  require(length <= cache.keys.size(2), "[model] expected at most ", cache.keys.size(2),
          " positions in the key-value cache, got ", length);
  cache.keys.narrow(2, cache.length, added).copy_(k);
  cache.values.narrow(2, cache.length, added).copy_(v);
  cache.length = length;
  k = cache.keys.narrow(2, 0, length);
  v = cache.values.narrow(2, 0, length);
}

}  // namespace

AttentionOptions CausalSelfAttentionImpl::options(const at::Tensor& documents) const {
  AttentionOptions options;
  options.causal = true;
  options.window = window_;
  options.implementation = implementation_;
  options.documents = documents;
  return options;
}

at::Tensor CausalSelfAttentionImpl::forward(const at::Tensor& x, const BlockContext& context) {
  const ScopedRange whole("self-attention");
  const int64_t b = x.size(0), n = x.size(1);
  const auto heads = [&](Linear& projection, int64_t count) {  // (B, N, C) -> (B, H, N, D)
    return projection->forward(x)
        .view({b, n, count, projection->weight.size(0) / count})
        .transpose(1, 2);
  };
  const auto rotate = [&](const at::Tensor& x) {
    const ScopedRange range("rope");
    return rope(x, context.rotary);
  };
  const auto q = rotate(heads(q_proj, num_heads_));
  auto k = rotate(heads(k_proj, num_kv_heads_));
  auto v = heads(v_proj, num_kv_heads_);
  if (context.cache != nullptr) extend(*context.cache, k, v);
  AttentionOptions asked = options(context.documents);
  asked.align_last = context.cache != nullptr;
  const auto attended = [&] {
    const ScopedRange range("attention");
    return attention(q, k.to(q.scalar_type()), v.to(q.scalar_type()), asked);
  }();
  return output_proj->forward(attended.transpose(1, 2).flatten(2));
}

SwigluNetworkImpl::SwigluNetworkImpl(int64_t d_model, int64_t d_ff,
                                     const torch::TensorOptions& options) {
  w1 = register_module("w1", Linear(d_model, d_ff, options));
  w2 = register_module("w2", Linear(d_ff, d_model, options));
  w3 = register_module("w3", Linear(d_model, d_ff, options));
}

at::Tensor SwigluNetworkImpl::forward(const at::Tensor& x) {
  const ScopedRange range("feed-forward");
  const auto a = w1->forward(x), b = w3->forward(x);
  const auto gated = [&] {
    const ScopedRange inner("swiglu");
    return swiglu(a, b);
  }();
  return w2->forward(gated);
}

TransformerBlockImpl::TransformerBlockImpl(const ModelConfig& config,
                                           const torch::TensorOptions& options) {
  attn = register_module("attn", CausalSelfAttention(config, options));
  ffn = register_module("ffn", SwigluNetwork(config.d_model, config.d_ff, options));
  ln1 = register_module("ln1", RmsNorm(config.d_model, config.norm_epsilon, options));
  ln2 = register_module("ln2", RmsNorm(config.d_model, config.norm_epsilon, options));
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, const BlockContext& context) {
  if (fused_block_takes(x, *this, context)) return fused_block(x, *this, context);
  const auto y = x + attn->forward(ln1->forward(x), context);
  return y + ffn->forward(ln2->forward(y));
}

}  // namespace flashstep
