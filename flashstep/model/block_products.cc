#include "flashstep/model/block_products.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "flashstep/ops/gradient_sum.h"
#include "flashstep/products/product.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;

Operand rounded(const Tensor& values, at::ScalarType type, Float8Layout layout,
                const Tensor& largest) {
  return {values,
          to_float8(values, type, layout, largest.defined() ? largest : largest_of(values))};
}

// d = dy^T x (+ c).
void weight_gradient(const Operand& dy, const Operand& x, const Tensor& d, const Tensor& c = {}) {
  if (!dy.is_rounded()) return product(dy.values.t(), x.values, d, c);
  scaled_product(dy.rounded.by_columns(), x.rounded.by_columns(), d, c);
}

std::vector<int64_t> rows_of_each(const std::vector<Tensor>& weights) {
  std::vector<int64_t> rows;
  for (const Tensor& weight : weights) rows.push_back(weight.size(0));
  return rows;
}

// One tensor of the float32 gradients of weights (R, C), each behind the one before: as they lie;
// new, where none is there; undefined where they cannot be added to together.
Tensor sum_of_gradients(const std::vector<Tensor>& weights) {
  if (!std::ranges::all_of(weights, may_add_to_gradient)) return {};
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

}  // namespace

Operand of_columns(const Tensor& kept, const Tensor& scale) {
  return scale.defined() ? Operand{.rounded = {{}, kept, scale}} : Operand{kept};
}

Tensor BlockProducts::largest(const Tensor& like) const {
  return in_float8 ? at::zeros({}, like.options().dtype(at::kFloat)) : Tensor();
}

Operand BlockProducts::operand(const Tensor& values, Float8Layout layout,
                               const Tensor& largest) const {
  return in_float8 ? rounded(values, kValues, layout, largest) : Operand{values};
}

Operand BlockProducts::gradient(const Tensor& values, const Tensor& largest) const {
  return in_float8 ? rounded(values, kGradients, Float8Layout::kBoth, largest) : Operand{values};
}

Operand BlockProducts::again(const Tensor& values, const Tensor& scale, Float8Layout layout) const {
  if (!in_float8) return {values};
  return {values, to_float8_again(values, kValues, layout, scale)};
}

Tensor BlockProducts::kept(const Operand& y) const {
  return recompute == Recompute::kNone ? y.by_columns() : Tensor();
}

void forward_product(const Operand& x, const Operand& weights, const Tensor& d, const Tensor& c) {
  if (!x.is_rounded()) return product(x.values, weights.values.t(), d, c);
  scaled_product(x.rounded.by_rows(), weights.rounded.by_rows(), d, c);
}
Tensor forward_product(const Operand& x, const Operand& weights) {
  const Tensor d = at::empty({x.values.size(0), weights.values.size(0)}, x.values.options());
  forward_product(x, weights, d);
  return d;
}

Tensor input_gradient(const Operand& dy, const Operand& weights) {
  const Tensor dx =
      at::empty({dy.by_rows().size(0), weights.values.size(1)}, weights.values.options());
  if (dy.is_rounded()) {
    scaled_product(dy.rounded.by_rows(), weights.rounded.by_columns(), dx);
  } else {
    product(dy.values, weights.values, dx);
  }
  return dx;
}

variable_list cut(const Tensor& x, int64_t dim, const std::vector<int64_t>& sizes) {
  variable_list parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.narrow(dim, begin, size));
    begin += size;
  }
  return parts;
}

variable_list weight_gradients(AutogradContext* context, size_t input,
                               const std::vector<Tensor>& weights, const Operand& dy,
                               const Operand& y) {
  variable_list gradients(weights.size());
  const auto wanted = [&](size_t i) { return context->needs_input_grad(input + i); };
  size_t count = 0;
  for (size_t i = 0; i < weights.size(); ++i) count += wanted(i) ? 1 : 0;
  if (count == 0) return gradients;
  const bool is_first = !weights.front().grad().defined();
  const Tensor sum = count == weights.size() ? sum_of_gradients(weights) : Tensor();
  if (sum.defined() && (!dy.is_rounded() || takes_scaled_product(sum))) {
    weight_gradient(dy, y, sum, is_first ? Tensor() : sum);
    if (is_first) return cut(sum, 0, rows_of_each(weights));
    std::ranges::transform(weights, gradients.begin(), take_gradient);
    return gradients;
  }
  const auto rows = rows_of_each(weights);
  const Tensor rounded = at::empty(
      {std::accumulate(rows.begin(), rows.end(), int64_t{0}), weights.front().size(1)},
      dy.by_rows().options().dtype(dy.is_rounded() ? at::kBFloat16 : dy.values.scalar_type()));
  weight_gradient(dy, y, rounded);
  gradients = cut(rounded, 0, rows);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!wanted(i)) gradients[i].reset();
  }
  return gradients;
}

}  // namespace flashstep::internal
