// Vectors of float32 read from and written to the stored types. Included once per instruction set:
// the guard is toggled as Highway prescribes for "-inl.h" headers.
#if defined(FLASHSTEP_ATTENTION_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_ELEMENT_INL_H_
#undef FLASHSTEP_ATTENTION_ELEMENT_INL_H_
#else
#define FLASHSTEP_ATTENTION_ELEMENT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
using Words = hn::Rebind<uint32_t, Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;

// bfloat16 as stored: the upper half of a float32.
struct Bf16 {
  uint16_t bits;
};
using Fp16 = hwy::float16_t;

HWY_INLINE FloatVector load(const float* p) { return hn::LoadU(Floats(), p); }

HWY_INLINE FloatVector load(const Bf16* p) {
  const auto bits = hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits)));
}

HWY_INLINE FloatVector load(const Fp16* p) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<Fp16, Floats>(), p));
}

HWY_INLINE void store(FloatVector v, float* p) { hn::StoreU(v, Floats(), p); }

// Rounds to nearest, ties to even; a NaN becomes the quiet NaN.
HWY_INLINE void store(FloatVector v, Bf16* p) {
  const Words words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFFu)), odd);
  const auto kept =
      hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), hn::Set(words, 0x7FC00000u), rounded);
  const auto upper = hn::BitCast(hn::Rebind<int32_t, Floats>(), hn::ShiftRight<16>(kept));
  hn::StoreU(hn::DemoteTo(Halves(), upper), Halves(), reinterpret_cast<uint16_t*>(p));
}

HWY_INLINE void store(FloatVector v, Fp16* p) {
  const hn::Rebind<Fp16, Floats> halves;
  hn::StoreU(hn::DemoteTo(halves, v), halves, p);
}

// The rest of a row goes through a padded copy: nothing outside of the row is touched.
template <typename T>
HWY_INLINE FloatVector load(const T* p, int count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes];
  std::memset(static_cast<void*>(padded), 0, sizeof padded);
  std::memcpy(static_cast<void*>(padded), p, static_cast<size_t>(std::max(count, 0)) * sizeof(T));
  return load(padded);
}

template <typename T>
HWY_INLINE void store(FloatVector v, T* p, int count) {
  if (count >= kLanes) return store(v, p);
  T padded[kLanes];
  store(v, padded);
  std::memcpy(static_cast<void*>(p), padded, static_cast<size_t>(count) * sizeof(T));
}

HWY_INLINE float sum_of(FloatVector v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
