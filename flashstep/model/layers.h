// The parts of the Transformer, as modules with the course's parameter names. No biases.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "flashstep/model/config.h"
#include "flashstep/ops/embedding.h"
#include "flashstep/ops/linear.h"
#include "flashstep/ops/rope.h"

namespace flashstep {

// Keys and values that one layer has computed so far, for decoding token by token.
struct LayerCache {
  at::Tensor keys, values;  // (B, H, capacity, D); [0, length) is filled
  int64_t length = 0;
};

// What a block needs beside the residual stream.
struct BlockContext {
  RotaryTables rotary;          // rows for the positions of x
  LayerCache* cache = nullptr;  // null: attend within x only
  Recompute recompute = Recompute::kNone;
};

// x (..., in) -> x weight^T (..., out). weight (out, in).
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) { return flashstep::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Linear);

// ids (...) int64 -> rows of weight (..., C). weight (V, C).
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t rows, int64_t width, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& ids) { return flashstep::embedding(weight, ids); }
  at::Tensor weight;
};
TORCH_MODULE(Embedding);

// flashstep::rms_norm with a weight (C).
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t width, double epsilon, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  double epsilon() const { return epsilon_; }
  at::Tensor weight;

 private:
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

// Causal multi-head attention with rotary positions: x (B, N, C) -> (B, N, C).
class CausalSelfAttentionImpl : public torch::nn::Module {
 public:
  CausalSelfAttentionImpl(const ModelConfig& config, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const BlockContext& context);
  int64_t num_heads() const { return num_heads_; }
  const std::string& implementation() const { return implementation_; }
  Linear q_proj = nullptr, k_proj = nullptr, v_proj = nullptr, output_proj = nullptr;

 private:
  int64_t num_heads_;
  std::string implementation_;
};
TORCH_MODULE(CausalSelfAttention);

// w2(silu(w1 x) * w3 x): x (..., C) -> (..., C).
class SwigluNetworkImpl : public torch::nn::Module {
 public:
  SwigluNetworkImpl(int64_t d_model, int64_t d_ff, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  Linear w1 = nullptr, w2 = nullptr, w3 = nullptr;
};
TORCH_MODULE(SwigluNetwork);

// x + attn(ln1(x)), then + ffn(ln2(.)): x (B, N, C) -> (B, N, C). On a GPU in mixed precision by
// fused_block.h.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  TransformerBlockImpl(const ModelConfig& config, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const BlockContext& context);
  CausalSelfAttention attn = nullptr;
  SwigluNetwork ffn = nullptr;
  RmsNorm ln1 = nullptr, ln2 = nullptr;
};
TORCH_MODULE(TransformerBlock);

}  // namespace flashstep
