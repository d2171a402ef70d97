// Fused operations of language models, each differentiable once, on CPUs and GPUs. Of each that has
// one, NAME_reference is the formula in tensor operations, differentiable as often as one likes. A
// backward with create_graph through an operator whose second derivatives are not known is a
// UserError.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/detail/float32_products.h"

namespace flashstep {

// While alive, operators on `device` choose their dtype by torch's autocast rules on this thread,
// with `dtype` (bfloat16 or float16) as the low one. Guards nest; each restores what it found, also
// when an exception passes.
class AutocastGuard {
 public:
  enum class Cache {
    kOn,   // a weight is cast once per outermost guard
    kOff,  // for graph capture: cached casts of a graph's private pool must not outlive it
  };
  AutocastGuard(at::DeviceType device, at::ScalarType dtype, Cache cache = Cache::kOn,
                bool enabled = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_, was_cached_;
  at::ScalarType was_dtype_;
};

// y = weight * x / sqrt(mean(x^2 over the last dimension) + epsilon), computed in float32 (float64
// for float64 input), differentiable once in x and weight.
//   x (..., C) of a floating dtype; weight (C).
// Returns x's shape and dtype; under autocast the autocast dtype, because what follows a norm is a
// matrix product that would round to it anyway. UserError for a weight that does not fit.
// Source: Zhang and Sennrich, "Root mean square layer normalization" (2019), equation 4.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// The same, with tensor operations only.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// Cosines and sines of position * theta^(-2i / head_dim), each (positions, head_dim / 2) float32.
struct RotaryTables {
  at::Tensor cos, sin;
  // Rows [begin, begin + length).
  RotaryTables slice(int64_t begin, int64_t length) const {
    return {cos.narrow(0, begin, length), sin.narrow(0, begin, length)};
  }
  RotaryTables to(at::Device device) const { return {cos.to(device), sin.to(device)}; }
};

// theta ^ (-2 i / head_dim), (head_dim / 2): angles by which a position turns the pairs of a head.
// UserError for an odd head_dim. The arithmetic is float32 throughout, as in the course's model.
at::Tensor rotary_frequencies(int64_t head_dim, double theta);
RotaryTables rotary_tables(int64_t positions, const at::Tensor& frequencies);
RotaryTables rotary_tables(int64_t positions, int64_t head_dim, double theta);

// Rotates each pair (x[..., 2i], x[..., 2i + 1]) by the angle of its position and i, computed in
// float32 (float64 for float64 input). Differentiable in x, as often as one likes.
//   x (B, H, N, D) of a floating dtype, any strides; tables.cos, tables.sin (N, D / 2).
// Returns x's shape, dtype and (where x is dense) layout. UserError for tables that do not fit.
// Source: Su et al., "RoFormer" (2021), equation 34.
at::Tensor rope(const at::Tensor& x, const RotaryTables& tables);

// The same, with tensor operations only.
at::Tensor rope_reference(const at::Tensor& x, const RotaryTables& tables);

// silu(a) * b with silu(a) = a / (1 + exp(-a)), element by element, computed in float32 (float64
// for float64 inputs) and rounded once. Differentiable once.
//   a, b: the same shape, floating. Returns that shape in their dtype; of two dtypes, what PyTorch
//         promotes them to. UserError for others.
// Source: Shazeer, "GLU variants improve Transformer" (2020), equation 6.
at::Tensor swiglu(const at::Tensor& a, const at::Tensor& b);

// The same, with tensor operations only.
at::Tensor swiglu_reference(const at::Tensor& a, const at::Tensor& b);

// weight[ids]: rows of weight (V, C) of a floating dtype for ids (...) int64, each in [0, V).
// Differentiable once in weight; rows of equal ids are summed in float32 in the order of their
// positions, so that bits repeat. The gradient is dense and has the dtype that weight keeps
// gradients in (set_grad_dtype), or weight's. Returns (..., C). UserError for another shape or
// dtype and, on the CPU, for an id outside [0, V).
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

// x weight^T, as LibTorch's linear: under autocast in autocast's dtype, else in x's.
// Differentiable once.
//   x (..., C), weight (R, C) of one floating dtype (under autocast also float32). Returns
//   (..., R). UserError for shapes that do not fit.
// On a CPU that has no products of bfloat16 or float16 LibTorch can take 100 times as long as in
// float32. There this function keeps activations and gradients in 16 bits and multiplies in
// float32; a float32 weight is then not rounded, and its gradient neither. float32 on a GPU is
// multiplied as set_float32_products() says.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

// x weight^T for layers in training. Its product and those of its gradients are of 8-bit
// floating-point numbers: each matrix is rounded to float8_e4m3fn, gradients to float8_e5m2, times
// one scale, which its largest magnitude decides. Sums are float32. Large products are 1.6 to 1.7
// times as fast as in bfloat16, an element is some 4 % off, a gradient's 6 %. Differentiable once.
//   x (..., C) bfloat16, or float32 under autocast in bfloat16; weight (R, C) bfloat16 or float32;
//   C and R multiples of 16; on a GPU of compute capability 8.9 or higher. Returns (..., R)
//   bfloat16. UserError for others.
// Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& weight);
// Whether the device can: false for a CPU.
bool has_float8_products(const at::Device& device);

// A target of no position: it counts for nothing in a loss, and its gradient is 0. LibTorch's.
inline constexpr int64_t kIgnoredTarget = -100;

// Mean over all positions of log(sum(exp(logits))) - logits[target], in nats, computed in float32
// (float64 for float64 logits). Differentiable once in logits.
//   logits (..., V) of a floating dtype; targets (...) int64, each in [0, V) or kIgnoredTarget,
//   whose positions are none of those that the mean is over.
// Returns a scalar, float32 (float64 for float64 logits). UserError for shapes that do not fit and,
// on the CPU, for a target outside [0, V); on a GPU, which the host does not wait for, such a
// target makes the loss NaN. No positions, or ignored ones only, give NaN, as a mean of nothing
// does.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// The same, with tensor operations only.
at::Tensor cross_entropy_reference(const at::Tensor& logits, const at::Tensor& targets);

// cross_entropy(linear(x, weight), targets): the mean over all positions of
// log(sum(exp(logits))) - logits[target], logits = x weight^T, in nats. Differentiable once in x
// and weight.
//   x (..., C), weight (V, C) of floating dtypes; targets (...) int64 as cross_entropy's.
// Returns a scalar, float32 (float64 for float64 logits). The product's dtype is x's, under
// autocast autocast's, as at::linear has it. UserError for shapes that do not fit.
//
// On a GPU in float32 or bfloat16, and on a CPU in float32, the logits of all positions never exist
// together: rows go through in chunks of 64 MiB of logits (a CPU: 16), or of 4,096 rows (512) where
// these are more, whose gradient takes their place and goes on to both of its products at once. The
// weight's gradient is summed over chunks in float32. Elsewhere it is the two operations one after
// the other.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

// sqrt(sum of squares over all tensors), () float32 on the device of the first; 0 for none. Tensors
// may differ in shape, dtype and device. The host does not wait for it.
//
// float32, bfloat16 and float16 on one GPU: one pass over their memory, in two launches (1,360
// tensors each more is another). Sums of at most 32 squares are float32, sums of those float64, in
// an order that follows from the tensors' sizes alone: the same bits in every run. A square above
// float32's largest number, of an element above 1.8e19, is infinite.
at::Tensor grad_norm(const std::vector<at::Tensor>& tensors);

// The same by PyTorch's foreach kernels: float32 norms of the tensors (of float64, in float64), and
// their norm.
at::Tensor grad_norm_reference(const std::vector<at::Tensor>& tensors);

// min(1, max_norm / (norm + 1e-6)), the rule of torch's clip_grad_norm_ and of the course; () on
// the norm's device. UserError unless max_norm is above 0.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

// Multiplies every gradient by clip_factor(norm, max_norm). Nothing is read back.
void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                  double max_norm);

using RecomputedCall = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct RecomputeOptions {
  // The second call draws the random numbers of the first one (dropout). Without it the generators
  // are left alone, which is right for calls that draw none, and saves copies of their states.
  bool same_random_numbers = true;
};

// Activation checkpointing: what lies between a call's inputs and outputs is not kept for backward
// but computed once more there. call(inputs), of which only `inputs` are kept. Backward calls it
// once more, with the same random numbers, autocast and inputs, and goes back through what it did
// then: parameters that it reads get the gradients that they would have got, hooks on them fire as
// usual. The two calls have to do the same work; what a call counts or averages in a buffer, it
// does twice. `call` may be kept as long as the graph. It must not write its inputs; tensors with a
// graph of their own go in as inputs, not by capture. The outputs want gradients. Random numbers
// are the CPU's and those of the first GPU among the inputs; in a CUDA graph there can be none.
// Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
//
// UserError: an input or an output is undefined, or `call` wrote an input. In backward: the second
// call returned other shapes or dtypes, or gradients were asked for by torch::autograd::grad or
// backward(inputs), which would miss the parameters inside, or with create_graph.
std::vector<at::Tensor> recompute(RecomputedCall call, std::vector<at::Tensor> inputs,
                                  RecomputeOptions options = {});

// The same for one tensor in and one out.
at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> call, const at::Tensor& input,
                     RecomputeOptions options = {});

}  // namespace flashstep
