// What an implementation of attention is: one entry in the table of dispatch.cc.
#pragma once

#include <torch/torch.h>

namespace flashstep::internal {

// Arguments after the checks of attention(): N, M, D >= 1 and everything resolved.
struct AttentionProblem {
  at::Tensor q, k, v;  // (B..., N, D), (B..., M, D), (B..., M, D), one dtype and device
  double scale;
  bool causal;
  // Query i sees keys 0..i + diagonal; 0, or M - N where the last query sees the last key.
  int64_t diagonal;
};

at::Tensor naive_attention(const AttentionProblem& problem);
at::Tensor sdpa_attention(const AttentionProblem& problem);

// (N, M) bool, true where query i must not see key j.
at::Tensor hidden_pairs(const AttentionProblem& problem);

}  // namespace flashstep::internal
