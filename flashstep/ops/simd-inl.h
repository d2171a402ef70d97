// Loads, stores and loops shared by this room's vector kernels. Included once per instruction set:
// the guard below is toggled as Highway prescribes for "-inl.h" headers.
#if defined(FLASHSTEP_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_OPS_SIMD_INL_H_
#undef FLASHSTEP_OPS_SIMD_INL_H_
#else
#define FLASHSTEP_OPS_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashstep::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// bfloat16 as stored: the upper half of a float32.
struct Bf16 {
  uint16_t bits;
};

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;

constexpr size_t kMaxLanes = hn::MaxLanes(Floats());

// Stands for "as many elements as a vector has"; a size_t stands for a shorter rest.
struct Full {};

HWY_INLINE FloatVector load(Floats d, const float* p, Full) { return hn::LoadU(d, p); }

HWY_INLINE FloatVector load(Floats d, const Bf16* p, Full) {
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::Rebind<uint32_t, Floats> words;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, bits)));
}

HWY_INLINE void store(FloatVector v, Floats d, float* p, Full) { hn::StoreU(v, d, p); }

// Rounds to nearest, ties to even; a NaN becomes the quiet NaN.
HWY_INLINE void store(FloatVector v, Floats /*d*/, Bf16* p, Full) {
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::Rebind<uint32_t, Floats> words;
  const hn::Rebind<int32_t, Floats> signed_words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFFu)), odd);
  const auto kept =
      hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), hn::Set(words, 0x7FC00000u), rounded);
  const auto upper = hn::BitCast(signed_words, hn::ShiftRight<16>(kept));
  hn::StoreU(hn::DemoteTo(halves, upper), halves, reinterpret_cast<uint16_t*>(p));
}

// A rest goes through a padded copy, so that nothing outside the row is touched.
template <typename T>
HWY_INLINE FloatVector load(Floats d, const T* p, size_t count) {
  T padded[kMaxLanes] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(d, padded, Full());
}

template <typename T>
HWY_INLINE void store(FloatVector v, Floats d, T* p, size_t count) {
  T padded[kMaxLanes];
  store(v, d, padded, Full());
  std::memcpy(p, padded, count * sizeof(T));
}

// body(i, Full()) for whole vectors of [begin, end), then body(i, count) for the rest.
template <typename Body>
HWY_INLINE void for_vectors(int64_t begin, int64_t end, const Body& body) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) body(i, Full());
  if (i < end) body(i, static_cast<size_t>(end - i));
}

HWY_INLINE float sum(Floats d, FloatVector v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

// e^v, with NaN kept (Highway's Exp makes it 0).
HWY_INLINE FloatVector exponential(Floats d, FloatVector v) {
  return hn::IfThenElse(hn::IsNaN(v), v, hn::Exp(d, v));
}

// 1 / (1 + e^-v).
HWY_INLINE FloatVector sigmoid(Floats d, FloatVector v) {
  const auto one = hn::Set(d, 1.0f);
  // Highway's Exp goes up to e^104, infinite in float32: the sigmoid is 0 there.
  const auto exponent = hn::Min(hn::Neg(v), hn::Set(d, 104.0f));
  return hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
