#include <type_traits>

#include "flashstep/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/ops/rope_cpu.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/ops/kernels_cpu.h"
#include "flashstep/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE void load_pairs(Floats d, const float* p, FloatVector& even, FloatVector& odd) {
  hn::LoadInterleaved2(d, p, even, odd);
}

HWY_INLINE void store_pairs(FloatVector even, FloatVector odd, Floats d, float* p) {
  hn::StoreInterleaved2(even, odd, d, p);
}

// A pair of bfloat16 is one 32-bit word (little-endian): the even element is its lower half.
HWY_INLINE void load_pairs(Floats d, const Bf16* p, FloatVector& even, FloatVector& odd) {
  const hn::Rebind<uint32_t, Floats> words;
  const auto bits = hn::LoadU(words, reinterpret_cast<const uint32_t*>(p));
  even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
  odd = hn::BitCast(d, hn::And(bits, hn::Set(words, 0xFFFF0000u)));
}

HWY_INLINE void store_pairs(FloatVector even, FloatVector odd, Floats d, Bf16* p) {
  Bf16 separate[2 * kMaxLanes];
  store(even, d, separate, Full());
  store(odd, d, separate + kMaxLanes, Full());
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    p[2 * i] = separate[i];
    p[2 * i + 1] = separate[kMaxLanes + i];
  }
}

template <typename T>
HWY_INLINE void rotate_row(const T* x, T* y, const float* cos, const float* sin, int64_t pairs,
                           FloatVector sign) {
  const Floats d;
  FloatVector even, odd;
  const auto rotate = [&](const T* from, T* to, FloatVector c, FloatVector s) HWY_ATTR {
    load_pairs(d, from, even, odd);
    s = hn::Mul(s, sign);
    const auto new_even = hn::NegMulAdd(s, odd, hn::Mul(c, even));
    const auto new_odd = hn::MulAdd(s, even, hn::Mul(c, odd));
    store_pairs(new_even, new_odd, d, to);
  };
  for_vectors(0, pairs, [&](int64_t i, auto count) HWY_ATTR {
    const auto c = load(d, cos + i, count);
    const auto s = load(d, sin + i, count);
    if constexpr (std::is_same_v<decltype(count), Full>) {
      rotate(x + 2 * i, y + 2 * i, c, s);
    } else {
      T padded[2 * kMaxLanes] = {};
      std::memcpy(padded, x + 2 * i, 2 * count * sizeof(T));
      rotate(padded, padded, c, s);
      std::memcpy(y + 2 * i, padded, 2 * count * sizeof(T));
    }
  });
}

template <typename T>
void rope_rows(const Rope& a, int64_t begin, int64_t end) {
  const Floats d;
  const auto sign = hn::Set(d, a.inverse ? -1.0f : 1.0f);
  const int64_t pairs = a.head_dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / a.positions, position = row % a.positions;
    const T* x = static_cast<const T*>(a.x) + batch * a.batch_stride + position * a.position_stride;
    T* y = static_cast<T*>(a.y) + batch * a.y_batch_stride + position * a.y_position_stride;
    for (int64_t head = 0; head < a.heads; ++head) {
      rotate_row(x + head * a.head_stride, y + head * a.y_head_stride, a.cos + position * pairs,
                 a.sin + position * pairs, pairs, sign);
    }
  }
}

void rotate(const Rope& a, int64_t begin, int64_t end) {
  if (a.type == Element::kFloat32) return rope_rows<float>(a, begin, end);
  rope_rows<Bf16>(a, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::kernels {

HWY_EXPORT(rotate);

void rope(const Rope& a, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(rotate)(a, begin, end);
}

}  // namespace flashstep::kernels
#endif  // HWY_ONCE
