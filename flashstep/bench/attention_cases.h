// What `flashstep bench attention` measures: the cases of its presets.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "flashstep/attention/cost.h"

namespace flashstep::tools {

inline const std::vector<std::string> kAttentionPasses = {"forward", "backward", "both"};

struct AttentionCase {
  std::string dtype;  // "fp32", "bf16", "fp16"
  int64_t batch = 1;
  int64_t heads = 1;  // 0: tensors without a dimension for heads, (B, N, D)
  int64_t n = 0, m = 0, head_dim = 0;
  bool causal = false;
  int64_t window = 0;     // with causal: keys that a query sees; 0: all up to its own
  int64_t documents = 0;  // with causal: their mean length; 0: one a row

  std::optional<int64_t> attention_window() const {
    return window > 0 ? std::make_optional(window) : std::nullopt;
  }
};

// For the cost formulas, where no heads are one head.
AttentionSize size_of(const AttentionCase& c);
double pass_flops(const AttentionCase& c, const std::string& pass);
double pass_bytes(const AttentionCase& c, const std::string& pass);

// "bf16 B 1 H 1 N 1024 D 64 causal", with M where it differs from N.
std::string describe(const AttentionCase& c);

struct AttentionPreset {
  std::string name;
  std::vector<AttentionCase> cases;
  std::vector<std::string> passes;
};

// "handout", "throughput", "leaderboard", "sweep", "cpu", and "grid", which is a report of its own.
std::vector<std::string> attention_presets();

// UserError for an unknown name. `pairs` (N, M) replace those of "sweep".
AttentionPreset attention_preset(const std::string& name,
                                 const std::vector<std::pair<int64_t, int64_t>>& pairs = {});

// Which cases of a preset are measured; what is empty leaves nothing out.
struct AttentionFilter {
  std::vector<std::string> dtypes;
  std::vector<int64_t> lengths;  // N
  std::vector<int64_t> head_dims;
  std::vector<std::string> passes;
  int64_t window = 0, documents = 0;  // of the causal cases, the only ones then
};
AttentionPreset filtered(AttentionPreset preset, const AttentionFilter& filter);

// What the implementations of `flashstep bench attention` compute on, and what they should find.

struct AttentionInputs {
  at::Tensor q, k, v;   // (B, H, N, D), (B, H, M, D), (B, H, M, D); H is 1 where there are none
  at::Tensor grad_out;  // (B, H, N, D)
};

// Standard normal numbers from LibTorch's generator of that device, seeded with `seed`: q, k, v and
// grad_out are drawn one after the other in float32 and rounded, so that another program can draw
// the same.
AttentionInputs random_inputs(const AttentionCase& c, const at::Device& device, uint64_t seed);

// The documents of a case, drawn for its N and the same in each row of the batch, as attention()
// takes them; undefined where there is one.
at::Tensor documents_of(const AttentionCase& c, const at::Device& device);

// The output and its gradients: out, grad_q, grad_k, grad_v, in the shapes of their inputs.
// Gradients may be undefined where only the forward pass is wanted.
using AttentionOutcome = std::array<at::Tensor, 4>;

using AttentionForward =
    std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;

// Of `out`, by q, k and v.
std::vector<at::Tensor> gradients_of(const at::Tensor& out, const AttentionInputs& inputs,
                                     bool retain_graph = false);
AttentionOutcome outcome_of(const AttentionForward& forward, const AttentionInputs& inputs,
                            bool gradients);
// The inputs with q, k and v as leaves; without their dimension for heads where that is wanted.
AttentionInputs leaves_of(const AttentionInputs& inputs, bool without_heads = false);

// (rows, keys) bool: true where the queries first, first + 1, ... must not see a key; undefined
// without a mask.
at::Tensor hidden_keys(const AttentionCase& c, int64_t first, int64_t rows, int64_t keys,
                       const at::Device& device);

// softmax(q k^T / sqrt(D)) v with tensor operations, as people write it; `hidden` (N, M) as above.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& hidden);

// How far an outcome is from the oracle, for each of its four.
struct AttentionErrors {
  std::array<int64_t, 4> wrong = {};  // elements beyond the tolerance
  std::array<double, 4> worst = {};   // the largest error, in tolerances
};

// The same formula and its gradients in float64 (the oracle) and, for the error that the dtype
// costs it, in the case's own dtype. Where the (N, M) matrices would not fit, both are computed in
// blocks of queries. Of many heads some are taken, evenly spread.
class AttentionReference {
 public:
  AttentionReference(const AttentionCase& c, const AttentionInputs& inputs, bool gradients);

  // Tolerated is, in each block of 128 rows, twice the largest error there of the formula in the
  // same dtype, plus one rounding of the largest element there and some of float32's own. (By
  // blocks, as the late rows of a causal mask are means of many values and small: what is lost in
  // them would hide behind the first row's size.) NaN counts as wrong, as does what is missing or
  // of another shape.
  AttentionErrors errors(const AttentionOutcome& outcome) const;

  int64_t checked_heads() const { return heads_.numel(); }

 private:
  at::Tensor some_heads(const at::Tensor& x) const;  // (B, H, rows, D) -> (heads, rows, D)

  int64_t all_heads_;
  at::Tensor heads_;  // indices among B * H
  bool gradients_;
  AttentionOutcome oracle_;
  AttentionOutcome tolerance_;  // (heads, rows, 1), float64
};

}  // namespace flashstep::tools
