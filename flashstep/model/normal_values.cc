#include "flashstep/model/normal_values.h"

#include <algorithm>
#include <cmath>

#include "flashstep/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/model/normal_values.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set
#include <hwy/highway.h>

#include "flashstep/base/rng.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::normal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::ScalableTag<double>;
using Words = hn::RebindToUnsigned<Doubles>;
using Double = hn::Vec<Doubles>;
using Word = hn::Vec<Words>;

constexpr size_t kDraws = 512;  // at a time; an even number, since a block of Philox has two

// sum of coefficients[i] * x^i
template <size_t kCount>
HWY_INLINE Double polynomial(const double (&coefficients)[kCount], Double x) {
  const Doubles d;
  Double value = hn::Set(d, coefficients[kCount - 1]);
  for (size_t i = kCount - 1; i-- > 0;)
    value = hn::Add(hn::Mul(value, x), hn::Set(d, coefficients[i]));
  return value;
}

// Where |q| = |probability - 0.5| <= 0.425: q times a rational function of q^2.
HWY_INLINE Double in_the_middle(Double q) {
  constexpr double kAbove[] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                               1.9715909503065514427e+3, 1.3731693765509461125e+4,
                               4.5921953931549871457e+4, 6.7265770927008700853e+4,
                               3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kBelow[] = {1.0,
                               4.2313330701600911252e+1,
                               6.8718700749205790830e+2,
                               5.3941960214247511077e+3,
                               2.1213794301586595867e+4,
                               3.9307895800092710610e+4,
                               2.8729085735721942674e+4,
                               5.2264952788528545610e+3};
  const Double r = hn::Sub(hn::Set(Doubles(), 0.180625), hn::Mul(q, q));  // 0.425^2 - q^2
  return hn::Div(hn::Mul(q, polynomial(kAbove, r)), polynomial(kBelow, r));
}

// Beyond, down to a tail of e^-25: a rational function of sqrt(-log(tail)) - 1.6.
HWY_INLINE Double in_a_tail(Double negative_log) {
  constexpr double kAbove[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                               5.76949722146069140550e0,  3.64784832476320460504e0,
                               1.27045825245236838258e0,  2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kBelow[] = {1.0,
                               2.05319162663775882187e0,
                               1.67638483018380384940e0,
                               6.89767334985100004550e-1,
                               1.48103976427480074590e-1,
                               1.51986665636164571966e-2,
                               5.47593808499534494600e-4,
                               1.05075007164441684324e-9};
  const Double r = hn::Sub(hn::Sqrt(negative_log), hn::Set(Doubles(), 1.6));
  return hn::Div(polynomial(kAbove, r), polynomial(kBelow, r));
}

// x (kDraws): probabilities, then their quantiles. The tails' logarithms are the C library's.
void quantiles(double* x) {
  const Doubles d;
  HWY_ALIGN double logs[kDraws];
  int tails[kDraws];
  size_t count = 0;
  for (int i = 0; i < static_cast<int>(kDraws); ++i) {
    tails[count] = i;
    count += std::abs(x[i] - 0.5) > 0.425 ? 1 : 0;
  }
  for (size_t i = 0; i < count; ++i) {
    const double probability = x[tails[i]];
    logs[i] = -std::log(probability < 0.5 ? probability : 1 - probability);
  }
  for (size_t i = count; i < hwy::RoundUpTo(count, hn::Lanes(d)); ++i) logs[i] = 1;
  for (size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Store(in_a_tail(hn::Load(d, logs + i)), d, logs + i);
  for (size_t i = 0; i < count; ++i)
    if (x[tails[i]] < 0.5) logs[i] = -logs[i];
  for (size_t i = 0; i < kDraws; i += hn::Lanes(d)) {
    const Double q = hn::Sub(hn::Load(d, x + i), hn::Set(d, 0.5));
    hn::Store(in_the_middle(q), d, x + i);
  }
  for (size_t i = 0; i < count; ++i) x[tails[i]] = logs[i];
}

// Of the low halves.
HWY_INLINE Word product(uint64_t factor, Word b) {
  const Word a = hn::Set(Words(), factor);
#if HWY_TARGET == HWY_SCALAR
  return hn::Mul(a, b);
#else
  const hn::Repartition<uint32_t, Words> halves;
  return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
#endif
}

// x (kDraws): what Rng::uniform() gives from draw `first`, an even number, on. Two draws a lane.
void uniforms(uint64_t seed, uint64_t stream, uint64_t first, double* x) {
  const Doubles d;
  const Words w;
  const Word low = hn::Set(w, 0xFFFFFFFF);
  const auto uniform = [](Word high_half, Word low_half) HWY_ATTR {
    const Word bits = hn::ShiftRight<11>(hn::Or(hn::ShiftLeft<32>(high_half), low_half));
    return hn::Mul(hn::ConvertTo(Doubles(), bits), hn::Set(Doubles(), 0x1.0p-53));
  };
  for (size_t i = 0; i < kDraws; i += 2 * hn::Lanes(d)) {
    const Word block = hn::Iota(w, (first + i) / 2);
    Word c0 = hn::And(block, low), c1 = hn::ShiftRight<32>(block);
    Word c2 = hn::Set(w, stream & 0xFFFFFFFF), c3 = hn::Set(w, stream >> 32);
    PhiloxKey key(seed);
    for (int round = 0; round < kPhiloxRounds; ++round, key.advance()) {
      const Word p0 = product(kPhiloxMultiplier0, c0), p1 = product(kPhiloxMultiplier1, c2);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(w, key.word0));
      c1 = hn::And(p1, low);
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(w, key.word1));
      c3 = hn::And(p0, low);
    }
    hn::StoreInterleaved2(uniform(c0, c1), uniform(c2, c3), d, x + i);
  }
}

void values(const NormalDraws& draws, uint64_t first, size_t count, float* out) {
  const Doubles d;
  HWY_ALIGN double x[kDraws];
  const double width = 1 - 2 * draws.lowest;
  for (size_t done = 0; done < count;) {
    const size_t odd = (first + done) % 2;
    uniforms(draws.seed, draws.stream, first + done - odd, x);
    for (size_t i = 0; i < kDraws; i += hn::Lanes(d)) {
      const Double scaled = hn::Mul(hn::Load(d, x + i), hn::Set(d, width));
      hn::Store(hn::Add(hn::Set(d, draws.lowest), scaled), d, x + i);
    }
    quantiles(x);
    const size_t here = std::min(kDraws - odd, count - done);
    for (size_t i = 0; i < here; ++i)
      out[done + i] = static_cast<float>(x[odd + i] * draws.standard_deviation);
    done += here;
  }
}

double quantile(double probability) {
  HWY_ALIGN double x[kDraws];
  std::fill_n(x, kDraws, probability);
  quantiles(x);
  return x[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::normal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep {
namespace normal {

HWY_EXPORT(values);
HWY_EXPORT(quantile);

}  // namespace normal

void normal_values(const NormalDraws& draws, uint64_t first, size_t count, float* out) {
  using namespace normal;
  HWY_DYNAMIC_DISPATCH(values)(draws, first, count, out);
}

double normal_quantile(double probability) {
  using namespace normal;
  return HWY_DYNAMIC_DISPATCH(quantile)(probability);
}

}  // namespace flashstep
#endif  // HWY_ONCE
