// The course's Transformer language model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "flashstep/attention.h"
#include "flashstep/detail/model_config.h"
#include "flashstep/ops.h"

namespace flashstep {

// Keys and values that one layer has computed so far, for decoding token by token.
struct LayerCache {
  at::Tensor keys, values;  // (B, H_kv, capacity, D); [0, length) is filled
  int64_t length = 0;
};

// What a block needs beside the residual stream.
struct BlockContext {
  RotaryTables rotary;          // rows for the positions of x
  LayerCache* cache = nullptr;  // null: attend within x only
  Recompute recompute = Recompute::kNone;
  at::Tensor documents = {};  // (2, B, N) as document_spans() gives; undefined: one a row
  bool in_float8 = false;     // TransformerImpl::set_float8_products()
};

// x (..., in) -> x weight^T (..., out). weight (out, in).
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const torch::TensorOptions& options);
  explicit LinearImpl(at::Tensor tied);  // its weight is another module's, too
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

// Causal multi-head attention with rotary positions: x (B, N, C) -> (B, N, C). Heads of keys and
// values may be fewer (grouped queries), and a query may see the last keys only (a window).
class CausalSelfAttentionImpl : public torch::nn::Module {
 public:
  CausalSelfAttentionImpl(const ModelConfig& config, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const BlockContext& context);
  int64_t num_heads() const { return num_heads_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  // What attention() is asked for, within x of such documents.
  AttentionOptions options(const at::Tensor& documents) const;
  Linear q_proj = nullptr, k_proj = nullptr, v_proj = nullptr, output_proj = nullptr;

 private:
  int64_t num_heads_, num_kv_heads_;
  std::optional<int64_t> window_;
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

// x + attn(ln1(x)), then + ffn(ln2(.)): x (B, N, C) -> (B, N, C). On a GPU in mixed precision
// by fused kernels.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  TransformerBlockImpl(const ModelConfig& config, const torch::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const BlockContext& context);
  CausalSelfAttention attn = nullptr;
  SwigluNetwork ffn = nullptr;
  RmsNorm ln1 = nullptr, ln2 = nullptr;
};
TORCH_MODULE(TransformerBlock);

// One block as a block runner sees it.
struct BlockCall {
  int64_t index;                              // among all blocks of the model
  std::string name;                           // "layers.3", the prefix of its parameters' names
  std::shared_ptr<torch::nn::Module> module;  // whose parameters the call reads
  std::function<at::Tensor(const at::Tensor& x)> forward;  // (B, N, C) -> (B, N, C), repeatable
};

// Takes the residual stream through all blocks in order. The default calls one after the other. It
// sees the whole sequence, so that it may group blocks (recompute several at once), look ahead
// (gather the next block's shards while this one runs), or wrap each `forward` and hand the list to
// the runner that was there before, which is how several of them combine. Parameters keep their
// names whatever the runner does.
using BlockRunner = std::function<at::Tensor(std::span<const BlockCall> blocks, at::Tensor x)>;

at::Tensor run_blocks_in_order(std::span<const BlockCall> blocks, at::Tensor x);

// Of the first `count` blocks (0: of all) keeps only the inputs of groups of `size`, the last of
// which may be shorter, and takes each group through `runner` again in backward (recompute() in
// ops.h). `runner` draws no random numbers. UserError for a size below 1, or a count below 0.
BlockRunner recompute_blocks(int64_t size, BlockRunner runner = run_blocks_in_order,
                             int64_t count = 0);

// Keys and values of every layer for B sequences that grow together.
class KeyValueCache {
 public:
  // Room for `capacity` positions, at most the model's context_length.
  KeyValueCache(const ModelConfig& config, int64_t batch, int64_t capacity,
                const torch::TensorOptions& options);
  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length; }
  void clear() { truncate(0); }
  void truncate(int64_t length);  // forgets what is behind the first `length` positions
  LayerCache& layer(int64_t index) { return layers_[index]; }
  // UserError unless it was made for so many sequences and a model of such layers and heads.
  void check(const ModelConfig& config, int64_t batch) const;

 private:
  std::vector<LayerCache> layers_;
};

// How a parameter gets its first values: draws from a normal distribution of mean 0 and the given
// standard deviation, none beyond `bound` standard deviations.
using ParameterFill = std::function<void(const at::Tensor& parameter, double standard_deviation,
                                         double bound, const std::string& name)>;

// Fills values (n), float32 on the CPU, with elements [begin, begin + n) of parameter `name`, in
// the order of its memory.
using PartFill =
    std::function<void(const std::string& name, const at::Tensor& values, int64_t begin)>;

// Token embedding, pre-norm blocks, final norm, head; no biases. Parameters:
//   token_embeddings.weight (V, C)
//   layers.I.attn.{q_proj,output_proj}.weight (C, C), .{k_proj,v_proj}.weight (C H_kv / H, C)
//   layers.I.ffn.{w1,w3}.weight (F, C), layers.I.ffn.w2.weight (C, F)
//   layers.I.{ln1,ln2}.weight (C), ln_final.weight (C)
//   lm_head.weight (V, C), with tie_embeddings token_embeddings.weight under a second name
class TransformerImpl : public torch::nn::Module {
 public:
  // UserError as resolved(config) has it. Parameters are made with `options` (device, dtype) and
  // initialized from `seed`, with the same values on every device: linear weights with standard
  // deviation sqrt(2 / (in + out)), embeddings with 1 (a tied one as the head), both truncated at
  // 3 standard deviations; norms are ones. nullopt: their values are left to initialize(fill).
  explicit TransformerImpl(const ModelConfig& config, std::optional<uint64_t> seed = 0,
                           const torch::TensorOptions& options = {});

  // tokens (B, N) int64 -> logits (B, N, V). UserError for another shape or dtype or N beyond
  // context_length.
  at::Tensor forward(const at::Tensor& tokens);
  // The same for tokens that follow those in `cache`, which it extends; without gradients. All are
  // taken for one document: behind a document_end, clear() the cache as generate() does. UserError
  // for a cache of another B or model. Whatever it throws, the cache is as it was.
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache& cache);
  // The mean cross-entropy of forward(tokens) and targets (B, N) int64, (): linear_cross_entropy of
  // the hidden states, for which a GPU never holds all logits in float32 and bfloat16, nor a CPU in
  // float32.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  // Up to and including the final norm: (B, N, C).
  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache = nullptr);

  void initialize(uint64_t seed);
  void initialize(const ParameterFill& fill);  // the same distributions, drawn by `fill`
  // What initialize(seed) gives the parameters, part by part: for those that nobody holds whole.
  PartFill part_fill(uint64_t seed) const;
  const ModelConfig& config() const { return config_; }
  // For positions [begin, begin + length) of tokens on `device`.
  RotaryTables rotary_rows(int64_t begin, int64_t length, at::Device device);

  const BlockRunner& block_runner() const { return block_runner_; }
  void set_block_runner(BlockRunner runner) { block_runner_ = std::move(runner); }

  // What backward computes again of the first `count` blocks (0: of all; the others:
  // recompute_of_others). They are those whose backward comes last, when the others' memory is free
  // again. kBlock: groups of `group`, around the block runner. UserError as recompute_blocks.
  void set_recompute(Recompute what, int64_t group = 1, int64_t count = 0);

  // Under autocast in bfloat16 the residual stream and its gradient are kept in it, too, not in
  // float32: 2 bytes instead of 4 for what every norm and every sum reads and writes.
  void set_short_stream(bool is_short) { has_short_stream_ = is_short; }

  // In bfloat16 on a GPU, by autocast or as the weights are, the products of blocks take 8-bit
  // floating-point numbers, each matrix with one scale of its own (float8_e4m3fn; gradients
  // float8_e5m2): large ones are 1.6 to 1.7 times as fast. Parameters, gradients, the residual
  // stream and the head stay as they are. With a cache, as in generate(), nothing is rounded to 8
  // bits. UserError for widths that are no multiples of 16, heads' of 8, or a GPU before compute
  // capability 8.9.
  void set_float8_products(bool in_float8);

  Embedding token_embeddings{nullptr};
  std::vector<TransformerBlock> layers;
  RmsNorm ln_final{nullptr};
  Linear lm_head{nullptr};

 private:
  void draw(const ParameterFill& fill) const;  // all but the norms
  at::Tensor embed(const at::Tensor& tokens);  // (B, N) -> (B, N, C)
  at::Tensor head(const at::Tensor& hidden);   // (B, N, C) -> (B, N, V)

  ModelConfig config_;
  std::mutex rotary_mutex_;  // of several threads that evaluate
  RotaryTables
      rotary_;  // for all positions, on the device that asked last; no parameter, no buffer
  BlockRunner block_runner_ = run_blocks_in_order;
  Recompute recompute_ = Recompute::kNone;
  int64_t recompute_group_ = 1, recompute_count_ = 0;
  bool has_short_stream_ = false, in_float8_ = false;
};
TORCH_MODULE(Transformer);

}  // namespace flashstep
