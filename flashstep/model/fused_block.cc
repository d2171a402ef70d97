#include "flashstep/model/fused_block.h"

#include <array>
#include <string>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/attention.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/model/block_products.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/float8.h"
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

  // y in `dtype` and rstd (T). largest: of y's magnitudes, unless it is undefined.
  std::pair<Tensor, Tensor> operator()(const Tensor& x, at::ScalarType dtype,
                                       const Tensor& largest = {}) const {
    const ScopedRange range("norm");
    Tensor y = at::empty(x.sizes(), x.options().dtype(dtype));
    Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    internal::rms_norm_forward_cuda(x, weight, epsilon, y, rstd, largest);
    return {y, rstd};
  }
};

using internal::BlockProducts;
using internal::cut;
using internal::Float8Layout;
using internal::forward_product;
using internal::input_gradient;
using internal::of_columns;
using internal::Operand;
using internal::weight_gradients;

// Of both gates beside one another, and h once more.
struct GateGradients {
  Operand gates, h;
};
// h_scale: undefined where products take 16 bits. dh is not used behind it.
GateGradients gate_gradients(const Tensor& gates, const Tensor& dh, const Tensor& h_scale) {
  const int64_t inner = dh.size(1);
  const Tensor a = gates.narrow(1, 0, inner), b = gates.narrow(1, inner, inner);
  if (h_scale.defined()) {
    auto made = internal::swiglu_backward_in_float8(a, b, dh, h_scale);
    return {{.rounded = std::move(made.gradients)}, of_columns(made.y_columns, h_scale)};
  }
  const Tensor dgates = at::empty_like(gates), &h = dh;  // h takes dh's place
  internal::swiglu_backward_cuda(a, b, dh, dgates.narrow(1, 0, inner),
                                 dgates.narrow(1, inner, inner), h);
  return {{dgates}, {h}};
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
                               double epsilon, const BlockProducts& products, bool turned_back) {
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Norm norm{norm_weight.detach(), epsilon};
    const Tensor largest = products.largest(rows);
    const auto [normed, rstd] = norm(rows, products.dtype, largest);
    const Operand y = products.operand(normed, Float8Layout::kBoth, largest);
    const Operand weights =
        products.operand(compute_copy({wq, wk, wv}, products.dtype), Float8Layout::kRows);
    const Tensor qkv = forward_product(y, weights);
    const Tensor all = all_heads_of(qkv, x.sizes(), heads);
    {
      const ScopedRange range("rope");
      turn(all, heads, cos, sin, /*inverse=*/false);
    }
    context->save_for_backward({rows, norm.weight, rstd, products.kept(y), y.rounded.scale,
                                weights.values, weights.rounded.scale, cos, sin});
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
    const auto &x = saved[0], &rstd = saved[2], &weights = saved[5], &cos = saved[7],
               &sin = saved[8];
    const Norm norm{saved[1], context->saved_data["epsilon"].toDouble()};
    const Tensor dstream = gradients[3].contiguous();
    const BlockProducts products{weights.scalar_type(), saved[6].defined()};
    const Operand y = saved[3].defined() ? of_columns(saved[3], saved[4])
                                         : products.again(norm(x, products.dtype).first, saved[4]);

    const HeadCounts heads{context->saved_data["queries"].toInt(),
                           context->saved_data["keys"].toInt()};
    variable_list from(gradients.begin(), gradients.begin() + 3);
    for (Tensor& gradient : from) gradient = gradient.to(weights.scalar_type());
    const Tensor dqkv = rows_of(from, heads);
    if (!context->saved_data["turned_back"].toBool())
      turn(all_heads_of(dqkv, dstream.sizes(), heads), heads, cos, sin, /*inverse=*/true);

    const Operand dproduct = products.gradient(dqkv);
    const Tensor dy = input_gradient(dproduct, products.again(weights, saved[6]));
    variable_list dweights =
        weight_gradients(context, kQ, context->saved_data["weights"].toTensorVector(), dproduct, y);
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
                        const Tensor& w3, const Tensor& w2, double epsilon,
                        const BlockProducts& products) {
    const auto dtype = products.dtype;
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const auto weights_of = [&](const Tensor& copy) {
      return products.operand(copy, Float8Layout::kRows);
    };
    const Operand out_weight = weights_of(compute_copy(wo, dtype)),
                  up_weights = weights_of(compute_copy({w1, w3}, dtype)),
                  down_weight = weights_of(compute_copy(w2, dtype));
    const Operand mixed = products.operand(attended, Float8Layout::kBoth);
    const Tensor x2 = at::empty_like(rows);
    forward_product(mixed, out_weight, x2, rows);
    const Norm norm{norm_weight.detach(), epsilon};
    const Tensor largest_y = products.largest(x2), largest_h = products.largest(x2);
    const auto [normed, rstd] = norm(x2, dtype, largest_y);
    const ScopedRange range("feed-forward");
    const Operand y = products.operand(normed, Float8Layout::kBoth, largest_y);
    const Tensor gates = forward_product(y, up_weights);
    const int64_t inner = down_weight.values.size(1);
    const Tensor activated = at::empty({rows.size(0), inner}, normed.options());
    {
      const ScopedRange inside("swiglu");
      internal::swiglu_forward_cuda(gates.narrow(1, 0, inner), gates.narrow(1, inner, inner),
                                    activated, largest_h);
    }
    const Operand h = products.operand(activated, Float8Layout::kRows, largest_h);
    const Tensor result = at::empty_like(rows);
    forward_product(h, down_weight, result, x2);
    context->save_for_backward(
        {mixed.by_columns(), mixed.rounded.scale, x2, norm.weight, rstd, products.kept(y),
         y.rounded.scale, products.recompute == Recompute::kInner ? Tensor() : gates,
         h.rounded.scale, out_weight.values, out_weight.rounded.scale, up_weights.values,
         up_weights.rounded.scale, down_weight.values, down_weight.rounded.scale});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["weights"] = std::vector<Tensor>{wo, w1, w3, w2};
    return result.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("model");
    const auto saved = context->get_saved_variables();
    const Operand mixed = of_columns(saved[0], saved[1]);
    const auto &x2 = saved[2], &rstd = saved[4];
    const Norm norm{saved[3], context->saved_data["epsilon"].toDouble()};
    const auto dtype = saved[9].scalar_type();
    const BlockProducts products{dtype, saved[10].defined()};
    const bool kept_gates = saved[7].defined();
    const auto layout = kept_gates ? Float8Layout::kColumns : Float8Layout::kBoth;
    const Operand out_weight = products.again(saved[9], saved[10]),
                  up_weights = products.again(saved[11], saved[12], layout),
                  down_weight = products.again(saved[13], saved[14]);
    const Tensor dout = gradients[0].contiguous().view(x2.sizes());
    const Operand rounded = products.gradient(dout.to(dtype));
    const Operand y = saved[5].defined() ? of_columns(saved[5], saved[6])
                                         : products.again(norm(x2, dtype).first, saved[6], layout);
    const Tensor gates = kept_gates ? saved[7] : forward_product(y, up_weights);

    const auto [dgates, h] = gate_gradients(gates, input_gradient(rounded, down_weight), saved[8]);
    const auto weights = context->saved_data["weights"].toTensorVector();
    variable_list dw2 = weight_gradients(context, k2, {weights[3]}, rounded, h);

    const Tensor dy = input_gradient(dgates, up_weights);
    variable_list dups = weight_gradients(context, k1, {weights[1], weights[2]}, dgates, y);

    const Tensor dx2 = at::empty_like(x2), largest_dx2 = products.largest(x2);
    const Tensor rounded_dx2 =
        dtype == x2.scalar_type() ? dx2 : at::empty(x2.sizes(), x2.options().dtype(dtype));
    const Tensor dnorm = internal::rms_norm_backward_cuda(
        x2, norm.weight, rstd, dy, dout, dx2, rounded_dx2.is_same(dx2) ? Tensor() : rounded_dx2,
        largest_dx2);
    const Operand dmixed = products.gradient(rounded_dx2, largest_dx2);
    const Tensor dattended = input_gradient(dmixed, out_weight);
    variable_list dwo = weight_gradients(context, kO, {weights[0]}, dmixed, mixed);
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
  const BlockProducts products{dtype, context.in_float8 && dtype == at::kBFloat16,
                               context.recompute};
  const auto& attn = *block.attn;
  const auto mixed = [&] {
    const ScopedRange whole("self-attention");
    const Tensor cos = context.rotary.cos.contiguous(), sin = context.rotary.sin.contiguous();
    const AttentionOptions options = attn.options(context.documents);
    const bool turns_back = internal::has_turned_attention(dtype, x.size(-1) / attn.num_heads(),
                                                           x.device(), options.implementation);
    auto inputs = AttentionInputs::apply(x, block.ln1->weight, attn.q_proj->weight,
                                         attn.k_proj->weight, attn.v_proj->weight, cos, sin,
                                         HeadCounts{attn.num_heads(), attn.num_kv_heads()},
                                         block.ln1->epsilon(), products, turns_back);
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
                            block.ln2->epsilon(), products);
}

}  // namespace flashstep
