#include <cmath>
#include <cstring>
#include <type_traits>

#include "flashstep/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/ops/cross_entropy_cpu.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/ops/kernels_cpu.h"
#include "flashstep/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::kernels {
namespace HWY_NAMESPACE {

// sum(exp(x)) = sum * exp(largest). Apart, so that nothing overflows, and that no digit of the sum
// is lost beside a large maximum.
struct Sum {
  float largest, sum;
};

template <typename T>
HWY_INLINE Sum sum_of_exponentials(const T* x, int64_t classes) {
  const Floats d;
  auto highest = hn::Set(d, static_cast<float>(-INFINITY));
  for_vectors(0, classes, [&](int64_t i, auto count) HWY_ATTR {
    if constexpr (std::is_same_v<decltype(count), Full>) {
      highest = hn::Max(highest, load(d, x + i, count));
    } else {
      const auto inside = hn::FirstN(d, count);
      highest = hn::IfThenElse(inside, hn::Max(highest, load(d, x + i, count)), highest);
    }
  });
  const float top = hn::GetLane(hn::MaxOfLanes(d, highest));
  const auto shift = hn::Set(d, top);
  auto total = hn::Zero(d);
  for_vectors(0, classes, [&](int64_t i, auto count) HWY_ATTR {
    const auto weight = exponential(d, hn::Sub(load(d, x + i, count), shift));
    if constexpr (std::is_same_v<decltype(count), Full>) {
      total = hn::Add(total, weight);
    } else {
      total = hn::Add(total, hn::IfThenElseZero(hn::FirstN(d, count), weight));
    }
  });
  return {top, sum(d, total)};
}

template <typename T>
HWY_INLINE float element(const T* x, int64_t i) {
  const Floats d;
  return hn::GetLane(load(d, x + i, size_t{1}));
}

template <typename T>
HWY_INLINE void set_element(T* x, int64_t i, float value) {
  const Floats d;
  store(hn::Set(d, value), d, x + i, size_t{1});
}

template <typename T>
void cross_entropy_rows(const CrossEntropy& a, int64_t begin, int64_t end) {
  const Floats d;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.logits) + row * a.classes;
    const int64_t target = a.targets[row];
    if (target == a.ignored) {
      a.losses[row] = 0;
      if (a.dlogits == nullptr) continue;
      std::memset(static_cast<T*>(a.dlogits) + row * a.classes, 0, a.classes * sizeof(T));
      continue;
    }
    const Sum all = sum_of_exponentials(x, a.classes);
    const float target_logit = element(x, target);
    a.losses[row] = all.largest - target_logit + std::log(all.sum);
    if (a.dlogits == nullptr) continue;
    T* dx = static_cast<T*>(a.dlogits) + row * a.classes;
    const auto shift = hn::Set(d, all.largest), share = hn::Set(d, a.scale / all.sum);
    for_vectors(0, a.classes, [&](int64_t i, auto count) HWY_ATTR {
      const auto weight = exponential(d, hn::Sub(load(d, x + i, count), shift));
      store(hn::Mul(weight, share), d, dx + i, count);
    });
    const float probability = std::exp(target_logit - all.largest) / all.sum;
    set_element(dx, target, (probability - 1.0f) * a.scale);
  }
}

void rows(const CrossEntropy& a, int64_t begin, int64_t end) {
  if (a.type == Element::kFloat32) return cross_entropy_rows<float>(a, begin, end);
  cross_entropy_rows<Bf16>(a, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::kernels {

HWY_EXPORT(rows);

void cross_entropy(const CrossEntropy& a, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(rows)(a, begin, end);
}

}  // namespace flashstep::kernels
#endif  // HWY_ONCE
