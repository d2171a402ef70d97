#include <cmath>

#include "flashstep/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/ops/rms_norm_cpu.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/ops/kernels_cpu.h"
#include "flashstep/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::kernels {
namespace HWY_NAMESPACE {

template <typename X, typename Y>
void forward_rows(const RmsNormForward& a, int64_t begin, int64_t end) {
  const Floats d;
  for (int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(a.x) + row * a.width;
    Y* y = static_cast<Y*>(a.y) + row * a.width;
    auto squares = hn::Zero(d);
    for_vectors(0, a.width, [&](int64_t i, auto count) HWY_ATTR {
      const auto v = load(d, x + i, count);
      squares = hn::MulAdd(v, v, squares);
    });
    const float rstd = 1.0f / std::sqrt(sum(d, squares) / static_cast<float>(a.width) + a.epsilon);
    a.rstd[row] = rstd;
    const auto factor = hn::Set(d, rstd);
    for_vectors(0, a.width, [&](int64_t i, auto count) HWY_ATTR {
      const auto xhat = hn::Mul(load(d, x + i, count), factor);
      store(hn::Mul(load(d, a.weight + i, count), xhat), d, y + i, count);
    });
  }
}

template <typename X, typename Y>
void backward_rows(const RmsNormBackward& a, int64_t begin, int64_t end, float* dweight) {
  const Floats d;
  for (int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(a.x) + row * a.width;
    const Y* dy = static_cast<const Y*>(a.dy) + row * a.width;
    X* dx = static_cast<X*>(a.dx) + row * a.width;
    const auto rstd = hn::Set(d, a.rstd[row]);
    auto products = hn::Zero(d);
    for_vectors(0, a.width, [&](int64_t i, auto count) HWY_ATTR {
      const auto xhat = hn::Mul(load(d, x + i, count), rstd);
      const auto gradient = load(d, dy + i, count);
      const auto weighted = hn::Mul(gradient, load(d, a.weight + i, count));
      products = hn::MulAdd(weighted, xhat, products);
      store(hn::MulAdd(gradient, xhat, load(d, dweight + i, count)), d, dweight + i, count);
    });
    const auto mean = hn::Set(d, sum(d, products) / static_cast<float>(a.width));
    for_vectors(0, a.width, [&](int64_t i, auto count) HWY_ATTR {
      const auto xhat = hn::Mul(load(d, x + i, count), rstd);
      const auto weighted = hn::Mul(load(d, dy + i, count), load(d, a.weight + i, count));
      store(hn::Mul(rstd, hn::NegMulAdd(xhat, mean, weighted)), d, dx + i, count);
    });
  }
}

void forward(const RmsNormForward& a, int64_t begin, int64_t end) {
  const bool x32 = a.x_type == Element::kFloat32, y32 = a.y_type == Element::kFloat32;
  if (x32 && y32) return forward_rows<float, float>(a, begin, end);
  if (x32) return forward_rows<float, Bf16>(a, begin, end);
  if (y32) return forward_rows<Bf16, float>(a, begin, end);
  forward_rows<Bf16, Bf16>(a, begin, end);
}

void backward(const RmsNormBackward& a, int64_t begin, int64_t end, float* dweight) {
  const bool x32 = a.x_type == Element::kFloat32, y32 = a.y_type == Element::kFloat32;
  if (x32 && y32) return backward_rows<float, float>(a, begin, end, dweight);
  if (x32) return backward_rows<float, Bf16>(a, begin, end, dweight);
  if (y32) return backward_rows<Bf16, float>(a, begin, end, dweight);
  backward_rows<Bf16, Bf16>(a, begin, end, dweight);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::kernels {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void rms_norm_forward(const RmsNormForward& a, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward)(a, begin, end);
}

void rms_norm_backward(const RmsNormBackward& a, int64_t begin, int64_t end, float* dweight) {
  HWY_DYNAMIC_DISPATCH(backward)(a, begin, end, dweight);
}

}  // namespace flashstep::kernels
#endif  // HWY_ONCE
