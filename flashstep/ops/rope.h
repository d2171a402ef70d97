// Rotary position embedding on interleaved pairs.
#pragma once

#include <torch/types.h>

namespace flashstep {

// Cosines and sines of position * theta^(-2i / head_dim), each (positions, head_dim / 2) float32.
struct RotaryTables {
  at::Tensor cos, sin;
  // Rows [begin, begin + length).
  RotaryTables slice(int64_t begin, int64_t length) const {
    return {cos.narrow(0, begin, length), sin.narrow(0, begin, length)};
  }
  RotaryTables to(at::Device device) const { return {cos.to(device), sin.to(device)}; }
};

// UserError for an odd head_dim. The arithmetic is float32 throughout, as in the course's model.
RotaryTables rotary_tables(int64_t positions, int64_t head_dim, double theta);

// Rotates each pair (x[..., 2i], x[..., 2i + 1]) by the angle of its position and i, computed in
// float32 (float64 for float64 input). Differentiable in x.
//   x (B, H, N, D) of a floating dtype, any strides; tables.cos, tables.sin (N, D / 2).
// Returns x's shape, dtype and (where x is dense) layout. UserError for tables that do not fit.
// Source: Su et al., "RoFormer" (2021), equation 34.
at::Tensor rope(const at::Tensor& x, const RotaryTables& tables);

// The same, with tensor operations only.
at::Tensor rope_reference(const at::Tensor& x, const RotaryTables& tables);

}  // namespace flashstep
