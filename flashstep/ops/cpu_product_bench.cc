// float32 products of a training step by everyone who can multiply on this processor, in turns.
// A line a product: batch rows, width, outputs, and GFLOP/s of x W^T, dy W and dy^T x by each.
#include <cstdio>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"
#include "flashstep/products/cpu/packed.h"
#include "flashstep/products/cpu_product.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr int kTurns = 31;

void mkl_product(const Tensor& a, const Tensor& b, const Tensor& d, bool adds) {
  Tensor result = d;
  at::addmm_out(result, d, a, b, adds ? 1 : 0);
}

struct Multiplier {
  const char* name;
  void (*multiply)(const Tensor&, const Tensor&, const Tensor&, bool);
};

std::vector<Multiplier> multipliers() {
  std::vector<Multiplier> all = {{"MKL", mkl_product}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512dq")) all.push_back({"oneDNN", internal::onednn_product});
#endif
  if (packed::is_available()) all.push_back({"packed", internal::packed_product});
  return all;
}

void compare(int64_t rows, int64_t width, int64_t outputs) {
  const Tensor x = at::randn({rows, width}), weight = at::randn({outputs, width});
  const Tensor dy = at::randn({rows, outputs});
  struct Operands {
    Tensor a, b, d;
  };
  const std::vector<Operands> passes = {{x, weight.t(), at::empty_like(dy)},
                                        {dy, weight, at::empty_like(x)},
                                        {dy.t(), x, at::empty_like(weight)}};
  const auto all = multipliers();
  std::vector<std::vector<double>> seconds(all.size() * passes.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < seconds.size(); ++i) {
      const auto& [a, b, d] = passes[i / all.size()];
      const double start = measure::steady_seconds();
      all[i % all.size()].multiply(a, b, d, false);
      seconds[i].push_back(measure::steady_seconds() - start);
    }
  }
  const double work = 2e-9 * static_cast<double>(rows * width * outputs);
  std::printf("%6lld %5lld %6lld", static_cast<long long>(rows), static_cast<long long>(width),
              static_cast<long long>(outputs));
  for (size_t i = 0; i < seconds.size(); ++i) {
    std::printf("%s %-6s %5.0f", i % all.size() == 0 ? "  |" : "", all[i % all.size()].name,
                work / measure::median(seconds[i]));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace flashstep

int main() {
  std::printf("%d threads, medians of %d turns, GFLOP/s of x W^T | dy W | dy^T x\n",
              at::get_num_threads(), flashstep::kTurns);
  const at::NoGradGuard no_grad;
  // quickstart, and `bench step`'s tiny, mini and base, each with its head.
  for (const int64_t n : {128, 352, 2048}) flashstep::compare(2048, 128, n);
  for (const int64_t n : {128, 352, 10000}) flashstep::compare(4096, 128, n);
  for (const int64_t n : {256, 704, 10000}) flashstep::compare(4096, 256, n);
  for (const int64_t n : {512, 1408, 10000}) flashstep::compare(2048, 512, n);
}
