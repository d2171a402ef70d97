#include "flashstep/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/ops/swiglu_cpu.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/ops/kernels_cpu.h"
#include "flashstep/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::kernels {
namespace HWY_NAMESPACE {

template <typename T>
void forward_range(const SwigluForward& args, int64_t begin, int64_t end) {
  const Floats d;
  const T *a = static_cast<const T*>(args.a), *b = static_cast<const T*>(args.b);
  T* y = static_cast<T*>(args.y);
  for_vectors(begin, end, [&](int64_t i, auto count) HWY_ATTR {
    const auto gate = load(d, a + i, count);
    const auto silu = hn::Mul(gate, sigmoid(d, gate));
    store(hn::Mul(silu, load(d, b + i, count)), d, y + i, count);
  });
}

template <typename T>
void backward_range(const SwigluBackward& args, int64_t begin, int64_t end) {
  const Floats d;
  const T *a = static_cast<const T*>(args.a), *b = static_cast<const T*>(args.b);
  const T* dy = static_cast<const T*>(args.dy);
  T *da = static_cast<T*>(args.da), *db = static_cast<T*>(args.db);
  const auto one = hn::Set(d, 1.0f);
  for_vectors(begin, end, [&](int64_t i, auto count) HWY_ATTR {
    const auto gate = load(d, a + i, count);
    const auto gradient = load(d, dy + i, count);
    const auto s = sigmoid(d, gate);
    const auto slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(one, s), one));
    store(hn::Mul(hn::Mul(gradient, load(d, b + i, count)), slope), d, da + i, count);
    store(hn::Mul(gradient, hn::Mul(gate, s)), d, db + i, count);
  });
}

void forward(const SwigluForward& args, int64_t begin, int64_t end) {
  if (args.type == Element::kFloat32) return forward_range<float>(args, begin, end);
  forward_range<Bf16>(args, begin, end);
}

void backward(const SwigluBackward& args, int64_t begin, int64_t end) {
  if (args.type == Element::kFloat32) return backward_range<float>(args, begin, end);
  backward_range<Bf16>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::kernels {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void swiglu_forward(const SwigluForward& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward)(args, begin, end);
}

void swiglu_backward(const SwigluBackward& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(backward)(args, begin, end);
}

}  // namespace flashstep::kernels
#endif  // HWY_ONCE
