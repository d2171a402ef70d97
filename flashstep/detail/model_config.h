// The sizes of a Transformer language model: a part of model.h, without LibTorch's headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/detail/fields.h"

namespace flashstep {

// Llama 3's: rotary wavelengths above original_context / low_frequency_factor are stretched by
// `factor`, those below original_context / high_frequency_factor are not, others in part.
struct RopeScaling {
  double factor = 1;  // 1: none is
  double low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_context = 8192;  // of the training that did without
  bool operator==(const RopeScaling&) const = default;
  void visit(FieldVisitor& visitor);
};

// A size of 0 (and an empty `size`) means "not given": resolved() fills it in.
struct ModelConfig {
  std::string size;            // one of model_size_names(), or empty
  int64_t vocab_size = 0;      // V
  int64_t context_length = 0;  // the longest sequence
  int64_t d_model = 0;         // C
  int64_t d_ff = 0;            // width inside the feed-forward network
  int64_t num_layers = 0;
  int64_t num_heads = 0;        // H, of queries
  int64_t num_kv_heads = 0;     // H_kv, of keys and values, a divisor of H; 0: H
  int64_t window = 0;           // keys that a query sees, the last ones up to its own; 0: all
  int64_t document_end = -1;    // the token that ends a document: none sees beyond; -1: none does
  bool tie_embeddings = false;  // the head's weight is the token embedding's
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  double norm_epsilon = 1e-5;
  std::string attention = "auto";  // one of attention_implementations()

  int64_t head_dim() const { return d_model / num_heads; }  // D
  std::optional<int64_t> attention_window() const {
    return window > 0 ? std::make_optional(window) : std::nullopt;
  }
  int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  int64_t kv_width() const { return kv_heads() * head_dim(); }  // of all keys of a token
  void visit(FieldVisitor& visitor);
};

// What backward of the blocks computes again instead of finding it in memory; each level keeps less
// than the one before. kNorms and kInner are for blocks on a GPU in mixed precision: others keep
// all.
enum class Recompute {
  kNone,
  kNorms,  // the outputs of both norms
  kInner,  // and the feed-forward network's two gates: one more product of six
  kBlock,  // all but the inputs of groups of blocks (recompute_blocks)
};
// What the other blocks recompute where only the first ones do so: beside kInner and kBlock the
// norms, which takes next to no time.
Recompute recompute_of_others(Recompute recompute);
std::vector<std::string> recompute_names();            // none, norms, inner, block
Recompute recompute_by_name(const std::string& name);  // UserError for others

// small, medium, large, xl, 2.7B (the 2025 handout), xl26, 10B (2026), 8B (the leaderboard).
std::vector<std::string> model_size_names();

// A named size with the vocabulary and context of its handout. UserError with the list for others.
ModelConfig named_model(const std::string& size);

// `config` with what it leaves open taken from its named size; a field that is given wins. Then
// checked: UserError for a size that is missing, d_model not divisible by num_heads, num_heads not
// by num_kv_heads, or an odd head_dim.
ModelConfig resolved(const ModelConfig& config);

// UserError unless products of 8 bits take the blocks of such a model, which is resolved.
void check_float8_widths(const ModelConfig& config);

}  // namespace flashstep
