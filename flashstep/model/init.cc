#include "flashstep/model/init.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "flashstep/model/normal_values.h"

namespace flashstep {
namespace {

// The Rng stream of a parameter: FNV-1a of its name.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

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
  const NormalDraws draws = {standard_deviation, lowest, seed, stream_of(name)};
  at::parallel_for(0, values.numel(), 4096, [&](int64_t begin, int64_t end) {  // a draw an element
    normal_values(draws, static_cast<uint64_t>(first + begin), static_cast<size_t>(end - begin),
                  out + begin);
  });
}

}  // namespace flashstep
