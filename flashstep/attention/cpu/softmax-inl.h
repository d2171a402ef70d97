// What happens to a tile of scores between two products. Scores are those of the products: the
// factors of `Scale` come here. Included once per instruction set.
//
// What is subtracted from a score must be rounded as the score is, or large ones leave the
// difference of two roundings to the exponential: the highest score is subtracted before the
// factor, the logsumexp, which knows the factor, from a score that was rounded after it. So no
// multiplication may be fused with a subtraction that is not written so (CMakeLists.txt).
#if defined(FLASHSTEP_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_SOFTMAX_INL_H_
#undef FLASHSTEP_ATTENTION_SOFTMAX_INL_H_
#else
#define FLASHSTEP_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cfloat>
#include <cmath>

#include "flashstep/attention/cpu/pass.h"
#include "flashstep/attention/cpu/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

// Minimax polynomials of 2^f (Remez; in float32 the errors are relative): on [-1/2, 1/2], 2.1e-7,
// and on [0, 1], 1.4e-7, where 2^0 is 1 exactly. The highest power comes first.
constexpr float kPowerAroundZero[] = {0.0013276472454890609f, 0.009675540961325169f,
                                      0.05550713092088699f,   0.24022120237350464f,
                                      0.6931469440460205f,    1.0000001192092896f};
constexpr float kPowerUpToOne[] = {0.0018669526325538754f, 0.009017480537295341f,
                                   0.055799514055252075f,  0.2401645928621292f,
                                   0.6931512951850891f,    1.0f};

HWY_INLINE FloatVector polynomial(const float (&coefficients)[6], FloatVector f) {
  const Floats d;
  auto p = hn::Set(d, coefficients[0]);
  HWY_UNROLL(5)
  for (int i = 1; i < 6; ++i) p = hn::MulAdd(p, f, hn::Set(d, coefficients[i]));
  return p;
}

// 2^x for x <= 127; 0 far below -126; NaN stays NaN.
HWY_INLINE FloatVector exp2_of(FloatVector x) {
#if HWY_TARGET == HWY_AVX3
  // Two instructions that Highway does not know: x - floor(x) (0 where x is infinite), and the
  // product with 2^floor(x).
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const FloatVector fraction{_mm512_reduce_ps(x.raw, kDown)};
  return FloatVector{_mm512_scalef_ps(polynomial(kPowerUpToOne, fraction).raw, x.raw)};
#else
  const Floats d;
  // Adding 1.5 * 2^23 rounds to an integer n, which then stands in the lowest bits; with 127 more
  // these are the exponent of 2^n. The product keeps NaN.
  const auto magic = hn::Set(d, 12582912.0f + 127);
  const auto shifted = hn::Add(x, magic);
  const auto p = polynomial(kPowerAroundZero, hn::Sub(x, hn::Sub(shifted, magic)));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(Words(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
#endif
}

// The softmax of a block of query rows as far as it has seen keys.
struct Running {
  float* top;     // per row: the highest score, before any factor; -FLT_MAX before the first
  float* weight;  // kLanes per row: sums of weights relative to the top
};

// The first `count` columns of a row of scores become -infinity.
HWY_INLINE void hide_first(float* row, int count) {
  const Floats d;
  const auto hidden = hn::Set(d, static_cast<float>(-INFINITY));
  int c = 0;
  for (; c + kLanes <= count; c += kLanes) store(hidden, row + c);
  if (c == count) return;
  store(hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(count - c)), hidden, load(row + c)),
        row + c);
}

// Turns `rows` rows of scores into weights relative to the new top, and sets factor[row] to what
// sums so far must be multiplied with. Columns that a row does not see get weight 0, up to the end
// of the last vector.
HWY_INLINE void softmax_rows(float* scores, int rows, int columns, Visible visible,
                             const Scale& scale, const Running& running, float* factor) {
  const Floats d;
  const auto to_base_2 = hn::Set(d, scale.base_2);
  const int end = static_cast<int>(round_up(columns, kLanes));
  alignas(64) float new_top[kMaxBlockRows + kLanes];
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * kStride;
    const int seen = static_cast<int>(std::clamp<int64_t>(r + visible.end, 0, columns));
    if (r + visible.begin > 0)
      hide_first(row, static_cast<int>(std::min<int64_t>(r + visible.begin, columns)));
    if (seen < end) {
      const auto hidden = hn::Set(d, static_cast<float>(-INFINITY));
      int c = seen / kLanes * kLanes;
      const auto inside = hn::FirstN(d, static_cast<size_t>(seen - c));
      store(hn::IfThenElse(inside, load(row + c), hidden), row + c);
      for (c += kLanes; c < end; c += kLanes) store(hidden, row + c);
    }
    auto top = load(row);
    for (int c = kLanes; c < end; c += kLanes) top = hn::Max(top, load(row + c));
    new_top[r] = std::max(running.top[r], hn::GetLane(hn::MaxOfLanes(d, top)));
  }
  for (int r = 0; r < rows; ++r) factor[r] = (running.top[r] - new_top[r]) * scale.base_2;
  for (int r = 0; r < rows; r += kLanes) {
    const int count = rows - r;
    store(exp2_of(load(factor + r, count)), factor + r, count);
  }
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * kStride;
    const auto top = hn::Set(d, new_top[r]);
    auto total = hn::Mul(load(running.weight + r * kLanes), hn::Set(d, factor[r]));
    for (int c = 0; c < end; c += kLanes) {
      const auto p = exp2_of(hn::Mul(hn::Sub(load(row + c), top), to_base_2));
      store(p, row + c);
      total = hn::Add(total, p);
    }
    store(total, running.weight + r * kLanes);
    running.top[r] = new_top[r];
  }
}

// Per query row of the backward pass.
struct Kept {
  const float* logsumexp;  // natural; +infinity for a row without visible keys
  const float* delta;      // sum of out * grad_out, minus grad_logsumexp
};

// Weights of scores: exp(scale * score - logsumexp).
HWY_INLINE FloatVector weights_of(FloatVector scores, FloatVector scale, FloatVector logsumexp) {
  const auto log2_e = hn::Set(Floats(), static_cast<float>(attention_kernel::kLog2E));
  return exp2_of(hn::Mul(hn::Sub(hn::Mul(scores, scale), logsumexp), log2_e));
}

// scores -> weights P, and weight_grads dP -> score gradients P * (dP - delta); 0 where hidden.
HWY_INLINE void score_gradients(float* scores, float* weight_grads, int rows, int columns,
                                Visible visible, const Scale& scale, const Kept& kept) {
  const Floats d;
  const auto natural = hn::Set(d, scale.natural);
  const int end = static_cast<int>(round_up(columns, kLanes));
  for (int r = 0; r < rows; ++r) {
    float *s = scores + r * kStride, *g = weight_grads + r * kStride;
    const int first = static_cast<int>(std::clamp<int64_t>(r + visible.begin, 0, columns));
    const int seen = static_cast<int>(std::clamp<int64_t>(r + visible.end, first, columns));
    const auto logsumexp = hn::Set(d, kept.logsumexp[r]), delta = hn::Set(d, kept.delta[r]);
    int c = 0;
    const auto zeros_up_to = [&](int column) HWY_ATTR {
      for (; c < column; c += kLanes) {
        store(hn::Zero(d), s + c);
        store(hn::Zero(d), g + c);
      }
    };
    const auto part_of_vector = [&]() HWY_ATTR {
      const auto before = hn::FirstN(d, static_cast<size_t>(std::max(first - c, 0)));
      const auto inside = hn::AndNot(before, hn::FirstN(d, static_cast<size_t>(seen - c)));
      const auto p = weights_of(load(s + c), natural, logsumexp);
      store(hn::IfThenElseZero(inside, p), s + c);
      store(hn::IfThenElseZero(inside, hn::Mul(p, hn::Sub(load(g + c), delta))), g + c);
      c += kLanes;
    };
    zeros_up_to(first / kLanes * kLanes);
    if (c < first && c < seen) part_of_vector();
    for (; c + kLanes <= seen; c += kLanes) {
      const auto p = weights_of(load(s + c), natural, logsumexp);
      store(p, s + c);
      store(hn::Mul(p, hn::Sub(load(g + c), delta)), g + c);
    }
    if (c < seen) part_of_vector();
    zeros_up_to(end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
