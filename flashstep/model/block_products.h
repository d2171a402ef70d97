// The products of a fused block (model/fused_block.h): of 16 bits, or of matrices that are rounded
// to 8 for them (ops/float8.h).
#pragma once

#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "flashstep/detail/model_config.h"
#include "flashstep/ops/float8.h"

namespace flashstep::internal {

// A matrix (R, C) as products take it: of 16 bits, or rounded to 8.
struct Operand {
  at::Tensor values = {};     // of 16 bits; undefined where nobody needs them
  Float8Matrix rounded = {};  // else undefined

  bool is_rounded() const { return rounded.scale.defined(); }
  const at::Tensor& by_rows() const { return is_rounded() ? rounded.rows : values; }
  // What weight_gradients() needs of it.
  at::Tensor by_columns() const { return is_rounded() ? rounded.columns : values; }
};

// An operand of weight_gradients() again, of its by_columns().
Operand of_columns(const at::Tensor& kept, const at::Tensor& scale);

// What a block's products take.
struct BlockProducts {
  at::ScalarType dtype;
  bool in_float8;
  Recompute recompute = Recompute::kNone;

  // Where a kernel is to leave the largest magnitude of what it makes; undefined: nowhere.
  at::Tensor largest(const at::Tensor& like) const;
  // largest: what its kernel has left; undefined: looked for.
  Operand operand(const at::Tensor& values, Float8Layout layout,
                  const at::Tensor& largest = {}) const;
  Operand gradient(const at::Tensor& values, const at::Tensor& largest = {}) const;
  // Of what forward took, for backward.
  Operand again(const at::Tensor& values, const at::Tensor& scale,
                Float8Layout layout = Float8Layout::kColumns) const;
  // What is kept of a norm's output.
  at::Tensor kept(const Operand& y) const;
};

// d = x weights^T (+ c).
void forward_product(const Operand& x, const Operand& weights, const at::Tensor& d,
                     const at::Tensor& c = {});
at::Tensor forward_product(const Operand& x, const Operand& weights);

// dy weights.
at::Tensor input_gradient(const Operand& dy, const Operand& weights);

// dy^T y, whose rows are the gradients of weights one behind the other, inputs of a function from
// number `input` on: added to what they have, in float32, or rounded as products are, for autograd
// to add.
std::vector<at::Tensor> weight_gradients(torch::autograd::AutogradContext* context, size_t input,
                                         const std::vector<at::Tensor>& weights, const Operand& dy,
                                         const Operand& y);

// x cut along `dim`: views, one behind the other.
std::vector<at::Tensor> cut(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& sizes);

}  // namespace flashstep::internal
