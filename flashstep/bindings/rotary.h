// Rotary positions of any shape.
#pragma once

#include <optional>

#include <torch/types.h>

#include "flashstep/ops.h"

namespace flashstep::bindings {

// UserError unless x is (..., N, D) with D even and positions broadcast to its (..., N). Of shapes
// that may be symbols (`looked_at`) D alone is checked.
void check_rope(const at::Tensor& x, const std::optional<at::Tensor>& positions, bool looked_at);

// Cosines and sines of x's rows: (N, D / 2) where all leading dimensions have the same positions,
// else (..., N, D / 2). Without positions, 0 to N - 1: made once for a device, D and theta.
RotaryTables tables_of(const at::Tensor& x, const std::optional<at::Tensor>& positions,
                       double theta);
// The same by operations that can be traced.
RotaryTables traced_tables(const at::Tensor& x, const std::optional<at::Tensor>& positions,
                           double theta);

// x (..., N, D) turned by such tables.
at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       bool inverse);

}  // namespace flashstep::bindings
