#include "flashstep/bindings/rotary.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/ops/passes.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;

RotaryTables tables_at(const Tensor& positions, int64_t head_dim, double theta) {
  require(theta > 0, "[rope] expected a theta above 0, got ", theta);
  const auto options = positions.options().dtype(at::kFloat);
  const Tensor exponents = -at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  const Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * at::pow(theta, exponents);
  return {angles.cos(), angles.sin()};
}

// Tables of positions 0, 1, ...: as long as they were needed, doubled when they are too short.
// Short ones stay, as a CUDA graph or another stream may still read them: together less than the
// longest.
RotaryTables counted_tables(int64_t length, int64_t head_dim, double theta, at::Device device) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int64_t, double>, std::vector<RotaryTables>> made;
  const std::lock_guard lock(mutex);
  std::vector<RotaryTables>& tables = made[{device.str(), head_dim, theta}];
  const int64_t known = tables.empty() ? 0 : tables.back().cos.size(0);
  if (known < length) {
    // What a graph makes is the graph's, and it copies nothing from the host's memory.
    if (is_being_captured(device)) {
      const at::NoGradGuard no_grad;
      return tables_at(at::arange(length, at::TensorOptions(device)), head_dim, theta);
    }
    // Whatever mode or transformation the caller is in, the next one gets plain tensors.
    const c10::InferenceMode no_inference(false);
    const c10::impl::ExcludeDispatchKeyGuard no_transformations(
        c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                             c10::DispatchKey::FuncTorchDynamicLayerBackMode}) |
        c10::functorch_transforms_ks | c10::python_ks);
    const at::NoGradGuard no_grad;
    tables.push_back(rotary_tables(std::max(length, 2 * known), head_dim, theta).to(device));
  }
  return tables.back().slice(0, length);
}

}  // namespace

void check_rope(const Tensor& x, const std::optional<Tensor>& positions, bool looked_at) {
  if (looked_at) return;
  require(x.dim() >= 2 && x.is_floating_point() && x.size(-1) % 2 == 0 && x.size(-1) > 0,
          "[rope] expected x of shape (..., N, D) with D even and a floating dtype, got ",
          x.sizes(), " of ", x.scalar_type());
  if (!positions) return;
  require(!positions->is_floating_point() && positions->dim() <= x.dim() - 1 &&
              at::is_expandable_to(positions->sizes(), x.sizes().slice(0, x.dim() - 1)),
          "[rope] expected integer positions that broadcast to x's (..., N), ",
          x.sizes().slice(0, x.dim() - 1), ", got ", positions->sizes(), " of ",
          positions->scalar_type());
  require(positions->device() == x.device(), "[rope] expected positions on ", x.device(),
          " like x, got ", positions->device());
}

RotaryTables tables_of(const Tensor& x, const std::optional<Tensor>& positions, double theta) {
  const int64_t n = x.size(-2), d = x.size(-1);
  if (!positions) return counted_tables(n, d, theta, x.device());
  const at::NoGradGuard no_grad;
  if (positions->dim() <= 1) return tables_at(positions->expand({n}), d, theta);
  return tables_at(positions->expand(x.sizes().slice(0, x.dim() - 1)), d, theta);
}

RotaryTables traced_tables(const Tensor& x, const std::optional<Tensor>& positions, double theta) {
  const int64_t d = x.sym_size(-1).guard_int(__FILE__, __LINE__);
  require(d > 0 && d % 2 == 0, "[rope] expected an even head dim, got ", d);
  const at::NoGradGuard no_grad;
  if (!positions) {
    const auto options = x.options().dtype(at::kLong).requires_grad(false);
    return tables_at(at::arange(c10::Scalar(x.sym_size(-2)), options), d, theta);
  }
  if (positions->dim() == 1) return tables_at(*positions, d, theta);
  return tables_at(positions->expand_symint(x.sym_sizes().slice(0, x.dim() - 1)), d, theta);
}

Tensor rotate_rows(const Tensor& x, const Tensor& cos_any, const Tensor& sin_any, bool inverse) {
  const Tensor cos = cos_any.contiguous(), sin = sin_any.contiguous();
  const int64_t n = x.size(-2), d = x.size(-1);
  if (cos.dim() > 2) {  // as many positions as rows
    const Tensor rows = x.reshape({1, 1, -1, d});
    return internal::rope_pass(rows, cos.view({-1, d / 2}), sin.view({-1, d / 2}), inverse)
        .view(x.sizes());
  }
  if (x.dim() == 4) return internal::rope_pass(x, cos, sin, inverse);
  if (x.numel() == 0) return at::empty(x.sizes(), x.options());
  return internal::rope_pass(x.reshape({1, -1, n, d}), cos, sin, inverse).view(x.sizes());
}

}  // namespace flashstep::bindings
