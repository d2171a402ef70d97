#include "flashstep/model/fused_block.h"

#include <array>
#include <string>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/attention.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/products/product.h"
#include "flashstep/profiling.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType compute_dtype(const Tensor& x) {
  return at::autocast::is_autocast_enabled(at::kCUDA) ? at::autocast::get_autocast_dtype(at::kCUDA)
                                                      : x.scalar_type();
}

// A norm as one function and its part of backward.
struct Norm {
  Tensor weight;  // (C) float32
  double epsilon;

  // y in `dtype` and rstd (T).
  std::pair<Tensor, Tensor> operator()(const Tensor& x, at::ScalarType dtype) const {
    const ScopedRange range("norm");
    Tensor y = at::empty(x.sizes(), x.options().dtype(dtype));
    Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    internal::rms_norm_forward_cuda(x, weight, epsilon, y, rstd);
    return {y, rstd};
  }
};

// Rows of dy^T y: the gradient of a weight, in the dtype that products compute in.
Tensor weight_gradient(const Tensor& dy, const Tensor& y) {
  Tensor gradient = at::empty({dy.size(1), y.size(1)}, y.options());
  product(dy.t(), y, gradient);
  return gradient;
}

Tensor times(const Tensor& a, const Tensor& b) {
  Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  product(a, b, result);
  return result;
}

Tensor part(const Tensor& rows, int64_t index, int64_t count) {
  return rows.narrow(0, index * count, count);
}

// Gradients of neighbours, for those that want one.
variable_list parts_wanted(AutogradContext* context, size_t first, const Tensor& gradients,
                           int64_t count) {
  variable_list parts(static_cast<size_t>(count));
  const int64_t rows = gradients.size(0) / count;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (context->needs_input_grad(first + i))
      parts[i] = part(gradients, static_cast<int64_t>(i), rows);
  }
  return parts;
}
bool any_wanted(AutogradContext* context, size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    if (context->needs_input_grad(i)) return true;
  }
  return false;
}

// (T, P C) -> P tensors (B, H, N, D), as they lie.
std::vector<Tensor> heads_of(const Tensor& rows, at::IntArrayRef sizes, int64_t heads,
                             int64_t parts) {
  const Tensor split = rows.view({sizes[0], sizes[1], parts, heads, -1});
  std::vector<Tensor> result;
  for (int64_t i = 0; i < parts; ++i) result.push_back(split.select(2, i).transpose(1, 2));
  return result;
}

// (T, P C) whose parts these are: as they lie, where they are heads_of() one tensor, or a copy.
Tensor rows_of(const std::vector<Tensor>& heads) {
  const Tensor& first = heads.front();
  const auto parts = static_cast<int64_t>(heads.size());
  const int64_t batch = first.size(0), count = first.size(1), length = first.size(2),
                dim = first.size(3), width = count * dim;
  const std::array<int64_t, 4> strides = {length * parts * width, dim, parts * width, 1};
  bool are_parts = true;
  for (int64_t i = 0; i < parts; ++i) {
    const Tensor& part = heads[static_cast<size_t>(i)];
    are_parts = are_parts && part.strides() == at::IntArrayRef(strides) &&
                part.is_alias_of(first) &&
                part.storage_offset() == first.storage_offset() + i * width;
  }
  if (are_parts) return first.as_strided({batch * length, parts * width}, {parts * width, 1});
  const Tensor rows = at::empty({batch * length, parts * width}, first.options());
  const auto into = heads_of(rows, {batch, length}, count, parts);
  for (size_t i = 0; i < heads.size(); ++i) into[i].copy_(heads[i]);
  return rows;
}

// x -> q, k, v (B, H, N, D), the first two turned, and x once more. Attention that turns gradients
// back itself (turned_attention) gives those of what was turned.
class AttentionInputs : public torch::autograd::Function<AttentionInputs> {
 public:
  enum Input : size_t { kX, kNorm, kQ, kK, kV };

  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& norm_weight,
                               const Tensor& wq, const Tensor& wk, const Tensor& wv,
                               const Tensor& cos, const Tensor& sin, int64_t num_heads,
                               double epsilon, at::ScalarType dtype, bool keeps_norm,
                               bool turned_back) {
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Norm norm{norm_weight.detach(), epsilon};
    const auto [y, rstd] = norm(rows, dtype);
    const Tensor weights = compute_copy({wq, wk, wv}, dtype);
    const Tensor qkv = times(y, weights.t());
    auto heads = heads_of(qkv, x.sizes(), num_heads, 3);
    {
      const ScopedRange range("rope");
      const std::vector<Tensor> turned = {heads[0], heads[1]};
      internal::rope_parts_cuda(turned, cos, sin, /*inverse=*/false, turned);
    }
    context->save_for_backward(
        {rows, norm.weight, rstd, keeps_norm ? y : Tensor(), weights, cos, sin});
    context->saved_data["num_heads"] = num_heads;
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["turned_back"] = turned_back;
    return {heads[0], heads[1], heads[2], x};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("model");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &rstd = saved[2], &weights = saved[4], &cos = saved[5],
               &sin = saved[6];
    const Norm norm{saved[1], context->saved_data["epsilon"].toDouble()};
    const Tensor dstream = gradients[3].contiguous();
    const Tensor y = saved[3].defined() ? saved[3] : norm(x, weights.scalar_type()).first;

    std::vector<Tensor> from(gradients.begin(), gradients.begin() + 3);
    for (Tensor& gradient : from) gradient = gradient.to(weights.scalar_type());
    const Tensor dqkv = rows_of(from);
    if (!context->saved_data["turned_back"].toBool()) {
      const auto parts =
          heads_of(dqkv, dstream.sizes(), context->saved_data["num_heads"].toInt(), 3);
      const std::vector<Tensor> turned = {parts[0], parts[1]};
      internal::rope_parts_cuda(turned, cos, sin, /*inverse=*/true, turned);
    }

    const Tensor dy = times(dqkv, weights);
    variable_list dweights(3);
    if (any_wanted(context, kQ, 3))
      dweights = parts_wanted(context, kQ, weight_gradient(dqkv, y), 3);
    const Tensor dx = at::empty_like(x);
    const Tensor dnorm =
        internal::rms_norm_backward_cuda(x, norm.weight, rstd, dy, dstream.view(x.sizes()), dx);
    return {dx.view(dstream.sizes()),
            dnorm,
            dweights[0],
            dweights[1],
            dweights[2],
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

// x and what attention makes of it -> the block's output.
class BlockOutput : public torch::autograd::Function<BlockOutput> {
 public:
  enum Input : size_t { kX, kAttended, kO, kNorm, k1, k3, k2 };

  // attended (T, C) in the dtype of products, dense.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& attended,
                        const Tensor& wo, const Tensor& norm_weight, const Tensor& w1,
                        const Tensor& w3, const Tensor& w2, double epsilon, Recompute recompute) {
    const auto dtype = attended.scalar_type();
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Tensor out_weight = compute_copy(wo, dtype), down_weight = compute_copy(w2, dtype);
    const Tensor up_weights = compute_copy({w1, w3}, dtype);
    const Tensor x2 = at::empty_like(rows);
    product(attended, out_weight.t(), x2, rows);
    const Norm norm{norm_weight.detach(), epsilon};
    const auto [y, rstd] = norm(x2, dtype);
    const ScopedRange range("feed-forward");
    const Tensor gates = times(y, up_weights.t());
    const int64_t inner = down_weight.size(1);
    const Tensor h = at::empty({rows.size(0), inner}, y.options());
    {
      const ScopedRange inside("swiglu");
      internal::swiglu_forward_cuda(gates.narrow(1, 0, inner), gates.narrow(1, inner, inner), h);
    }
    const Tensor result = at::empty_like(rows);
    product(h, down_weight.t(), result, x2);
    context->save_for_backward(
        {attended, x2, norm.weight, rstd, recompute == Recompute::kNone ? y : Tensor(),
         recompute == Recompute::kInner ? Tensor() : gates, out_weight, up_weights, down_weight});
    context->saved_data["epsilon"] = epsilon;
    return result.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("model");
    const auto saved = context->get_saved_variables();
    const auto &attended = saved[0], &x2 = saved[1], &rstd = saved[3], &out_weight = saved[6],
               &up_weights = saved[7], &down_weight = saved[8];
    const Norm norm{saved[2], context->saved_data["epsilon"].toDouble()};
    const auto dtype = attended.scalar_type();
    const Tensor dout = gradients[0].contiguous().view(x2.sizes());
    const Tensor rounded = dout.to(dtype);
    const Tensor y = saved[4].defined() ? saved[4] : norm(x2, dtype).first;
    const Tensor gates = saved[5].defined() ? saved[5] : times(y, up_weights.t());

    const int64_t inner = down_weight.size(1);
    const Tensor dh = times(rounded, down_weight);
    const Tensor dgates = at::empty_like(gates), &h = dh;  // h takes dh's place
    internal::swiglu_backward_cuda(gates.narrow(1, 0, inner), gates.narrow(1, inner, inner), dh,
                                   dgates.narrow(1, 0, inner), dgates.narrow(1, inner, inner), h);
    const Tensor dw2 = context->needs_input_grad(k2) ? weight_gradient(rounded, h) : Tensor();

    const Tensor dy = times(dgates, up_weights);
    variable_list dups(2);
    if (any_wanted(context, k1, 2)) dups = parts_wanted(context, k1, weight_gradient(dgates, y), 2);

    const Tensor dx2 = at::empty_like(x2);
    const Tensor rounded_dx2 = dtype == x2.scalar_type() ? dx2 : at::empty_like(attended);
    const Tensor dnorm = internal::rms_norm_backward_cuda(
        x2, norm.weight, rstd, dy, dout, dx2, rounded_dx2.is_same(dx2) ? Tensor() : rounded_dx2);
    const Tensor dattended = times(rounded_dx2, out_weight);
    const Tensor dwo =
        context->needs_input_grad(kO) ? weight_gradient(rounded_dx2, attended) : Tensor();
    return {dx2.view(gradients[0].sizes()),
            dattended,
            dwo,
            dnorm,
            dups[0],
            dups[1],
            dw2,
            Tensor(),
            Tensor()};
  }
};

bool is_whole(int64_t width) { return width % 8 == 0; }  // vectors of 16 bytes

}  // namespace

bool fused_block_takes(const Tensor& x, const TransformerBlockImpl& block,
                       const BlockContext& context) {
  if (!internal::has_cuda_kernel(x) || context.cache != nullptr || x.numel() == 0) return false;
  const auto dtype = compute_dtype(x);
  const Tensor& weight = block.ffn->w1->weight;
  return dtype != at::kFloat && (x.scalar_type() == at::kFloat || x.scalar_type() == dtype) &&
         (weight.scalar_type() == at::kFloat || weight.scalar_type() == dtype) &&
         block.ln1->weight.scalar_type() == at::kFloat && weight.device() == x.device() &&
         is_whole(x.size(-1)) && is_whole(weight.size(0)) &&
         is_whole(x.size(-1) / block.attn->num_heads()) && context.rotary.cos.is_cuda();
}

Tensor fused_block(const Tensor& x, TransformerBlockImpl& block, const BlockContext& context) {
  const auto dtype = compute_dtype(x);
  const Recompute recompute = context.recompute;
  const auto& attn = *block.attn;
  const auto mixed = [&] {
    const ScopedRange whole("self-attention");
    const Tensor cos = context.rotary.cos.contiguous(), sin = context.rotary.sin.contiguous();
    const bool turns_back = internal::has_turned_attention(dtype, x.size(-1) / attn.num_heads(),
                                                           x.device(), attn.implementation());
    auto inputs = AttentionInputs::apply(x, block.ln1->weight, attn.q_proj->weight,
                                         attn.k_proj->weight, attn.v_proj->weight, cos, sin,
                                         attn.num_heads(), block.ln1->epsilon(), dtype,
                                         recompute == Recompute::kNone, turns_back);
    const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
    AttentionOptions options;
    options.causal = true;
    options.implementation = attn.implementation();
    const ScopedRange range("attention");
    inputs.push_back(turns_back ? internal::turned_attention(q, k, v, cos, sin)
                                : attention(q, k, v, options));
    return inputs;
  }();
  const Tensor attended = mixed[4].transpose(1, 2).reshape({-1, x.size(-1)});
  return BlockOutput::apply(mixed[3], attended, attn.output_proj->weight, block.ln2->weight,
                            block.ffn->w1->weight, block.ffn->w3->weight, block.ffn->w2->weight,
                            block.ln2->epsilon(), recompute);
}

}  // namespace flashstep
