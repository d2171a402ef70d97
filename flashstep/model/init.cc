#include "flashstep/model/init.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "flashstep/base/rng.h"

namespace flashstep {
namespace {

// The Rng stream of a parameter: FNV-1a of its name.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// sum of coefficients[i] * x^i
template <size_t kCount>
double polynomial(const double (&coefficients)[kCount], double x) {
  double value = 0;
  for (size_t i = kCount; i-- > 0;) value = value * x + coefficients[i];
  return value;
}

}  // namespace

double normal_quantile(double probability) {
  const double q = probability - 0.5;
  if (std::abs(q) <= 0.425) {  // the middle: q times a rational function of q^2
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
    const double r = 0.180625 - q * q;  // 0.425^2 - q^2
    return q * polynomial(kAbove, r) / polynomial(kBelow, r);
  }
  // The tails, down to a probability of e^-25: a rational function of sqrt(-log(tail)) - 1.6.
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
  const double r = std::sqrt(-std::log(q < 0 ? probability : 1 - probability)) - 1.6;
  const double magnitude = polynomial(kAbove, r) / polynomial(kBelow, r);
  return q < 0 ? -magnitude : magnitude;
}

void fill_truncated_normal(const at::Tensor& parameter, double standard_deviation, double bound,
                           uint64_t seed, const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto values = at::empty(parameter.sizes(), at::kFloat);
  fill_part_truncated_normal(values.view({-1}), 0, standard_deviation, bound, seed, name);
  parameter.copy_(values);
}

void fill_part_truncated_normal(const at::Tensor& values, int64_t first, double standard_deviation,
                                double bound, uint64_t seed, const std::string& name) {
  float* out = values.data_ptr<float>();
  const double lowest = 0.5 * std::erfc(bound / std::sqrt(2.0));  // P(X <= -bound)
  const uint64_t stream = stream_of(name);
  at::parallel_for(0, values.numel(), 4096, [&](int64_t begin, int64_t end) {
    Rng rng(seed, stream, static_cast<uint64_t>(first + begin));  // one draw an element
    for (int64_t i = begin; i < end; ++i) {
      const double probability = lowest + rng.uniform() * (1 - 2 * lowest);
      out[i] = static_cast<float>(normal_quantile(probability) * standard_deviation);
    }
  });
}

}  // namespace flashstep
