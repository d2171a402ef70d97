// The passes of the fused operators, for callers that keep the graph between them (bindings).
// Inputs as the operators have checked them; where has_pass() is false there is none.
#pragma once

#include <tuple>
#include <utility>

#include <torch/types.h>

#include "flashstep/products/product.h"

namespace flashstep::internal {

// Whether the vector or GPU kernels take x.
bool has_pass(const at::Tensor& x);
// Autocast's, where it is on for x's device; else x's own. float64 stays.
at::ScalarType dtype_under_autocast(const at::Tensor& x);
// Whether they take x with such a weight, to a result of `dtype`.
bool has_rms_norm_pass(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype);

// y, and what backward needs of it: 1 / sqrt(mean(x^2) + epsilon), (rows) float32.
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double epsilon, at::ScalarType dtype);
// dx and dweight.
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                    const at::Tensor& weight,
                                                    const at::Tensor& rstd);

// Like x, of which it keeps the layout where that has dense rows.
at::Tensor empty_with_dense_rows(const at::Tensor& x);
// A rotation's gradient is the rotation by the opposite angle, so forward and backward are one.
at::Tensor rope_pass(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     bool inverse);

at::Tensor swiglu_forward(const at::Tensor& a, const at::Tensor& b);
// da and db.
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& dy, const at::Tensor& a,
                                                  const at::Tensor& b);

// The loss, and what backward needs: on the CPU dlogits (none unless `wants_gradient`), on a GPU
// the normalizers of the rows (rows, 2).
std::pair<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits,
                                                        const at::Tensor& targets,
                                                        bool wants_gradient);
at::Tensor cross_entropy_backward(const at::Tensor& dloss, const at::Tensor& logits,
                                  const at::Tensor& targets, const at::Tensor& saved);

// Whether linear_cross_entropy() of such x, weight and targets computes in `dtype` without whole
// logits. Looks at no sizes.
bool has_linear_cross_entropy_pass(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& targets, at::ScalarType dtype);
// The loss, and for a factor of 1 the gradients of x, in `dtype`, and of weight, float32; undefined
// where they are not wanted. On a CPU too, with few rows of logits at a time.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, at::ScalarType dtype,
    bool wants_x, bool wants_weight);

// UserError for what float8_linear() does not take. Looks at no numbers.
void check_float8_linear(const at::Tensor& x, const at::Tensor& weight);
// Of rows (T, C) and weight (R, C) bfloat16: y (T, R), and what backward needs: rows' columns in 8
// bits (undefined unless wants_weight), their scale, the weight's.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> float8_linear_forward(
    const at::Tensor& rows, const at::Tensor& weight, bool wants_weight);
// dx (undefined unless wants_x). dweight: where the weight's gradient goes, bfloat16 or float32,
// added to what is there where `adds`; undefined: not wanted.
at::Tensor float8_linear_backward(const at::Tensor& dy, const ScaledMatrix& x_columns,
                                  const at::Tensor& weight, const at::Tensor& weight_scale,
                                  bool wants_x, const at::Tensor& dweight, bool adds = false);

}  // namespace flashstep::internal
