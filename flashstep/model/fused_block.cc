#include "flashstep/model/fused_block.h"

#include <algorithm>
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
#include "flashstep/ops/gradient_sum.h"
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

Tensor times(const Tensor& a, const Tensor& b) {
  Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  product(a, b, result);
  return result;
}

// x cut along `dim`: views, one behind the other.
variable_list cut(const Tensor& x, int64_t dim, const std::vector<int64_t>& sizes) {
  variable_list parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.narrow(dim, begin, size));
    begin += size;
  }
  return parts;
}

std::vector<int64_t> rows_of_each(const std::vector<Tensor>& weights) {
  std::vector<int64_t> rows;
  for (const Tensor& weight : weights) rows.push_back(weight.size(0));
  return rows;
}

// One tensor of the float32 gradients of weights (R, C), each behind the one before: as they lie;
// new, where none is there; undefined where they cannot be added to together.
Tensor sum_of_gradients(const std::vector<Tensor>& weights) {
  if (!std::ranges::all_of(weights, internal::may_add_to_gradient)) return {};
  const Tensor& first = weights.front().grad();
  const int64_t width = weights.front().size(1);
  int64_t rows = 0;
  bool is_one = true, is_new = true;
  for (const Tensor& weight : weights) {
    const Tensor& sum = weight.grad();
    is_new = is_new && !sum.defined();
    is_one = is_one && first.defined() && sum.defined() && sum.is_alias_of(first) &&
             sum.storage_offset() == first.storage_offset() + rows * width;
    rows += weight.size(0);
  }
  if (is_new)
    return at::empty({rows, width},
                     weights.front().options().dtype(at::kFloat).requires_grad(false));
  return is_one ? first.as_strided({rows, width}, {width, 1}) : Tensor();
}

// dy^T y, whose rows are the gradients of weights one behind the other, inputs of a function from
// number `input` on: added to what they have, in float32, or rounded as products are, for autograd
// to add.
variable_list weight_gradients(AutogradContext* context, size_t input,
                               const std::vector<Tensor>& weights, const Tensor& dy,
                               const Tensor& y) {
  variable_list gradients(weights.size());
  const auto wanted = [&](size_t i) { return context->needs_input_grad(input + i); };
  size_t count = 0;
  for (size_t i = 0; i < weights.size(); ++i) count += wanted(i) ? 1 : 0;
  if (count == 0) return gradients;
  const bool is_first = !weights.front().grad().defined();
  const Tensor sum = count == weights.size() ? sum_of_gradients(weights) : Tensor();
  if (sum.defined()) {
    product(dy.t(), y, sum, is_first ? Tensor() : sum);
    if (is_first) return cut(sum, 0, rows_of_each(weights));
    std::ranges::transform(weights, gradients.begin(), internal::take_gradient);
    return gradients;
  }
  const Tensor rounded = at::empty({dy.size(1), y.size(1)}, y.options());
  product(dy.t(), y, rounded);
  gradients = cut(rounded, 0, rows_of_each(weights));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!wanted(i)) gradients[i].reset();
  }
  return gradients;
}

// Of queries and of keys, which values have as many of.
struct HeadCounts {
  int64_t queries, keys;
  int64_t all() const { return queries + 2 * keys; }
};

// (T, all heads D) -> (B, all heads, N, D), as it lies: a token's queries, keys and values are one
// behind the other.
Tensor all_heads_of(const Tensor& rows, at::IntArrayRef sizes, const HeadCounts& heads) {
  return rows.view({sizes[0], sizes[1], heads.all(), -1}).transpose(1, 2);
}

variable_list split_heads(const Tensor& all, const HeadCounts& heads) {
  return cut(all, 1, {heads.queries, heads.keys, heads.keys});
}

// Of queries and keys, in place.
void turn(const Tensor& all, const HeadCounts& heads, const Tensor& cos, const Tensor& sin,
          bool inverse) {
  const Tensor turned = all.narrow(1, 0, heads.queries + heads.keys);
  internal::rope_cuda(turned, cos, sin, inverse, turned);
}

// (T, all heads D) whose heads these are: as they lie, where split_heads() gave them, or a copy.
Tensor rows_of(const variable_list& parts, const HeadCounts& heads) {
  const Tensor& first = parts.front();
  const int64_t batch = first.size(0), length = first.size(2), dim = first.size(3),
                row = heads.all() * dim;
  const std::array<int64_t, 4> strides = {length * row, dim, row, 1};
  bool are_parts = true;
  int64_t offset = first.storage_offset();
  for (const Tensor& part : parts) {
    are_parts = are_parts && part.strides() == at::IntArrayRef(strides) &&
                part.is_alias_of(first) && part.storage_offset() == offset;
    offset += part.size(1) * dim;
  }
  if (are_parts) return first.as_strided({batch * length, row}, {row, 1});
  const Tensor rows = at::empty({batch * length, row}, first.options());
  const auto into = split_heads(all_heads_of(rows, {batch, length}, heads), heads);
  for (size_t i = 0; i < parts.size(); ++i) into[i].copy_(parts[i]);
  return rows;
}

// x -> q (B, H, N, D), k and v (B, H_kv, N, D), the first two turned, and x once more. Attention
// that turns gradients back itself (turned_attention) gives those of what was turned.
class AttentionInputs : public torch::autograd::Function<AttentionInputs> {
 public:
  enum Input : size_t { kX, kNorm, kQ, kK, kV };

  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& norm_weight,
                               const Tensor& wq, const Tensor& wk, const Tensor& wv,
                               const Tensor& cos, const Tensor& sin, HeadCounts heads,
                               double epsilon, at::ScalarType dtype, bool keeps_norm,
                               bool turned_back) {
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Norm norm{norm_weight.detach(), epsilon};
    const auto [y, rstd] = norm(rows, dtype);
    const Tensor weights = compute_copy({wq, wk, wv}, dtype);
    const Tensor qkv = times(y, weights.t());
    const Tensor all = all_heads_of(qkv, x.sizes(), heads);
    {
      const ScopedRange range("rope");
      turn(all, heads, cos, sin, /*inverse=*/false);
    }
    context->save_for_backward(
        {rows, norm.weight, rstd, keeps_norm ? y : Tensor(), weights, cos, sin});
    context->saved_data["queries"] = heads.queries;
    context->saved_data["keys"] = heads.keys;
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["turned_back"] = turned_back;
    context->saved_data["weights"] = std::vector<Tensor>{wq, wk, wv};
    variable_list results = split_heads(all, heads);
    results.push_back(x);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("model");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &rstd = saved[2], &weights = saved[4], &cos = saved[5],
               &sin = saved[6];
    const Norm norm{saved[1], context->saved_data["epsilon"].toDouble()};
    const Tensor dstream = gradients[3].contiguous();
    const Tensor y = saved[3].defined() ? saved[3] : norm(x, weights.scalar_type()).first;

    const HeadCounts heads{context->saved_data["queries"].toInt(),
                           context->saved_data["keys"].toInt()};
    variable_list from(gradients.begin(), gradients.begin() + 3);
    for (Tensor& gradient : from) gradient = gradient.to(weights.scalar_type());
    const Tensor dqkv = rows_of(from, heads);
    if (!context->saved_data["turned_back"].toBool())
      turn(all_heads_of(dqkv, dstream.sizes(), heads), heads, cos, sin, /*inverse=*/true);

    const Tensor dy = times(dqkv, weights);
    variable_list dweights =
        weight_gradients(context, kQ, context->saved_data["weights"].toTensorVector(), dqkv, y);
    const Tensor dx = at::empty_like(x);
    const Tensor dnorm =
        internal::rms_norm_backward_cuda(x, norm.weight, rstd, dy, dstream.view(x.sizes()), dx);
    return {dx.view(dstream.sizes()),
            dnorm,
            std::move(dweights[0]),
            std::move(dweights[1]),
            std::move(dweights[2]),
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
    context->saved_data["weights"] = std::vector<Tensor>{wo, w1, w3, w2};
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
    const auto weights = context->saved_data["weights"].toTensorVector();
    variable_list dw2 = weight_gradients(context, k2, {weights[3]}, rounded, h);

    const Tensor dy = times(dgates, up_weights);
    variable_list dups = weight_gradients(context, k1, {weights[1], weights[2]}, dgates, y);

    const Tensor dx2 = at::empty_like(x2);
    const Tensor rounded_dx2 = dtype == x2.scalar_type() ? dx2 : at::empty_like(attended);
    const Tensor dnorm = internal::rms_norm_backward_cuda(
        x2, norm.weight, rstd, dy, dout, dx2, rounded_dx2.is_same(dx2) ? Tensor() : rounded_dx2);
    const Tensor dattended = times(rounded_dx2, out_weight);
    variable_list dwo = weight_gradients(context, kO, {weights[0]}, rounded_dx2, attended);
    return {dx2.view(gradients[0].sizes()),
            dattended,
            std::move(dwo[0]),
            dnorm,
            std::move(dups[0]),
            std::move(dups[1]),
            std::move(dw2[0]),
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
  const int64_t head_dim = x.size(-1) / block.attn->num_heads();
  const auto is_table = [&](const Tensor& table) {  // of others rope() says what it expects
    return table.sizes() == at::IntArrayRef({x.size(1), head_dim / 2}) &&
           table.scalar_type() == at::kFloat && table.device() == x.device();
  };
  return dtype != at::kFloat && (x.scalar_type() == at::kFloat || x.scalar_type() == dtype) &&
         (weight.scalar_type() == at::kFloat || weight.scalar_type() == dtype) &&
         block.ln1->weight.scalar_type() == at::kFloat &&
         block.ln2->weight.scalar_type() == at::kFloat && weight.device() == x.device() &&
         is_whole(x.size(-1)) && is_whole(weight.size(0)) && is_whole(head_dim) &&
         is_table(context.rotary.cos) && is_table(context.rotary.sin);
}

Tensor fused_block(const Tensor& x_any, TransformerBlockImpl& block, const BlockContext& context) {
  const Tensor x = x_any.contiguous();  // the kernels' rows lie one behind the other
  const auto dtype = compute_dtype(x);
  const Recompute recompute = context.recompute;
  const auto& attn = *block.attn;
  const auto mixed = [&] {
    const ScopedRange whole("self-attention");
    const Tensor cos = context.rotary.cos.contiguous(), sin = context.rotary.sin.contiguous();
    const AttentionOptions options = attn.options(context.documents);
    const bool turns_back = internal::has_turned_attention(dtype, x.size(-1) / attn.num_heads(),
                                                           x.device(), options.implementation);
    auto inputs = AttentionInputs::apply(
        x, block.ln1->weight, attn.q_proj->weight, attn.k_proj->weight, attn.v_proj->weight, cos,
        sin, HeadCounts{attn.num_heads(), attn.num_kv_heads()}, block.ln1->epsilon(), dtype,
        recompute == Recompute::kNone, turns_back);
    const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
    const ScopedRange range("attention");
    inputs.push_back(turns_back ? internal::turned_attention(q, k, v, cos, sin, options.window,
                                                             options.documents)
                                : attention(q, k, v, options));
    return inputs;
  }();
  const Tensor attended = mixed[4].transpose(1, 2).reshape({-1, x.size(-1)});
  return BlockOutput::apply(mixed[3], attended, attn.output_proj->weight, block.ln2->weight,
                            block.ffn->w1->weight, block.ffn->w3->weight, block.ffn->w2->weight,
                            block.ln2->epsilon(), recompute);
}

}  // namespace flashstep
