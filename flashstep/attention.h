// Scaled dot-product attention through one dispatch point.
// docs/attention.md derives what the kernels compute.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace flashstep {

// "auto" first, then every implementation of this build by name:
//   naive  the formula, with tensor operations; the reference, float64 allowed, any D
//   tiled  FlashAttention-2 with tensor operations on tiles, to be read beside the paper; any D
//   cpu    vectorised kernels; float32, bfloat16, float16, D up to 256
//   cuda   tensor-core kernels, NVIDIA GPUs from compute capability 8.0; the same dtypes, D a
//          multiple of 8 up to 256
//   sdpa   PyTorch's at::scaled_dot_product_attention, whose CPU kernel loses some NaN
// "auto" takes our kernels wherever they can be, else naive, tiled or sdpa; it never times anything
// at run time.
std::vector<std::string> attention_implementations();

// There is no dropout and no bias on the scores.
struct AttentionOptions {
  // Query i sees keys 0..i only.
  bool causal = false;
  // With causal and N != M: the last query sees the last key (query i sees keys 0..i + M - N), as
  // decoding with cached keys needs, instead of the first query seeing the first key.
  bool align_last = false;
  // Factor on the scores; 1/sqrt(D) unless given.
  std::optional<double> scale = {};
  // One of attention_implementations().
  std::string implementation = "auto";
  // Equal inputs give equal bits, also in the gradients; unless given, as
  // at::globalContext().deterministicAlgorithms() says. On a GPU implementation sdpa with gradients
  // is refused then: PyTorch may take kernels that add them up in any order.
  std::optional<bool> deterministic = {};
  // With causal: of the keys above a query sees the last `window` only, the one on the diagonal
  // among them (a sliding window). At least 1; all unless given.
  std::optional<int64_t> window = {};
  // Where rows hold several documents (packed sequences): what document_spans() gives, (2, B..., N)
  // int32 on q's device, with q (B..., H, N, D) and N = M. A query sees no key of another document.
  // Other numbers give undefined results, and a backward pass on a GPU may wait for ever.
  at::Tensor documents = {};
};

// The documents of rows (B..., N) of integers: tokens, of which each `end` is the last of its
// document; unless given any numbers, of which equal ones side by side are a document. For every
// position the first of its document and the one behind its last, (2, B..., N) int32. Padding with
// a number of its own is a document of its own, and tokens behind an `end` are. A few small
// operations on the tensor's device, without a synchronisation: once for all layers. UserError for
// floating-point numbers.
at::Tensor document_spans(const at::Tensor& ids, std::optional<int64_t> end = {});

// softmax(scale * q k^T) v with the mask above. Differentiable.
//   q (B..., H, N, D), k and v (B..., H_kv, M, D), with any equal leading dimensions B..., at least
//   one; H a multiple of H_kv (query head h reads key head h / (H / H_kv)). Without heads q (B, N,
//   D) or (N, D), k and v (B, M, D) or (M, D). One device and one dtype of float32, bfloat16,
//   float16 and float64. Returns q's shape and dtype.
// A query that sees no key gives zeros, one whose scores are all -infinity gives NaN. Under
// autocast q, k and v are rounded to the autocast dtype. Usable on any stream, inside CUDA graph
// capture and from several threads. UserError names the argument whose rank, shape, dtype, device,
// scale or implementation is wrong; double backward is refused by all implementations but naive.
// Sources: Vaswani et al., "Attention is all you need" (2017), equation 1; Dao,
// "FlashAttention-2" (2023), algorithms 1 and 2.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {});

// The same, and logsumexp (B..., H, N) = ln(sum over seen keys of exp(scale * q k^T)), float32
// (float64 for float64 inputs), -infinity where no key is seen; both differentiable. Parts of a key
// sequence can be merged by it. UserError for implementation sdpa, which gives none.
std::pair<at::Tensor, at::Tensor> attention_with_logsumexp(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const AttentionOptions& options = {});

// What "auto" takes for such inputs.
std::string attention_auto(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options = {});

}  // namespace flashstep
