#include "flashstep/products/product.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/products/cpu_product.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

TEST(Product, AddsWhereItIsAsked) {
  torch::manual_seed(3);
  const Tensor a = torch::randn({5, 7}), b = torch::randn({3, 7}).t(), c = torch::randn({5, 3});
  Tensor d = torch::full({5, 3}, NAN);
  product(a, b, d);
  EXPECT_TRUE(testing::close(d, at::mm(a, b), 1e-5));
  product(a, b, d, c);
  EXPECT_TRUE(testing::close(d, at::mm(a, b) + c, 1e-5));
  product(a, b, d, d);
  EXPECT_TRUE(testing::close(d, at::mm(a, b) * 2 + c, 1e-5));
}

TEST(Product, TakesWhatOverlaps) {
  torch::manual_seed(3);
  const Tensor row = torch::randn({6}), b = torch::randn({6, 3}), d = torch::empty({5, 3});
  product(row.expand({5, 6}), b, d);
  EXPECT_TRUE(testing::close(d, at::mm(row.expand({5, 6}), b), 1e-5));
}

TEST(Product, SumsSixteenBitsInFloat32) {
  const Tensor a = torch::ones({1, 4096}, at::kBFloat16), b = torch::ones({4096, 1}, at::kBFloat16);
  Tensor wide = torch::empty({1, 1}), narrow = torch::empty({1, 1}, at::kBFloat16);
  product(a, b, wide);
  product(a, b, narrow);
  EXPECT_EQ(wide.item<float>(), 4096);
  EXPECT_EQ(narrow.item<float>(), 4096);
}

TEST(Product, OfNothingIsNothing) {
  Tensor d = torch::full({2, 3}, NAN), none = torch::empty({0, 3});
  product(torch::empty({2, 0}), torch::empty({0, 3}), d);
  EXPECT_TRUE(testing::close(d, torch::zeros({2, 3}), 0));
  product(torch::empty({0, 4}), torch::empty({4, 3}), none);
}

// LibTorch's call of oneDNN wants AVX-512, of float32, too; so does who takes it (takes_onednn).
bool has_onednn() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

TEST(Product, OneDnnsIsTheSame) {
  if (!has_onednn()) GTEST_SKIP() << "LibTorch's products by oneDNN want AVX-512";
  torch::manual_seed(3);
  const auto close_to_mm = [](const Tensor& a, const Tensor& b) {
    const Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble)).to(at::kFloat);
    const double bound = 1e-6 * static_cast<double>(a.size(1));
    const Tensor d = torch::full({a.size(0), b.size(1)}, NAN), before = torch::randn(d.sizes());
    internal::onednn_product(a, b, d, 1, 0);
    EXPECT_TRUE(testing::close(d, expected, bound));
    d.copy_(before);
    internal::onednn_product(a, b, d, 0.5, 1);
    EXPECT_TRUE(testing::close(d, before + 0.5 * expected, bound));
    const Tensor again = before.clone();
    internal::onednn_product(a, b, again, 0.5, 1);
    EXPECT_TRUE(torch::equal(d, again));
  };
  for (const int64_t m : {1, 67, 200}) {
    const Tensor a = torch::randn({m, 130}), b = torch::randn({130, 99});
    close_to_mm(a, b);
    close_to_mm(a, torch::randn({99, 130}).t());
    close_to_mm(torch::randn({130, m}).t(), b);
    close_to_mm(torch::randn({m, 140}).narrow(1, 3, 130),
                torch::randn({130, 103}).narrow(1, 1, 99));
    close_to_mm(torch::randn({1, 1}).expand({m, 130}), b);
    close_to_mm(torch::randn({130}).expand({m, 130}), torch::randn({1, 99}).expand({130, 99}));
  }
  Tensor wide = torch::zeros({70, 120});
  const Tensor a = torch::randn({70, 80}), b = torch::randn({80, 100});
  internal::onednn_product(a, b, wide.narrow(1, 10, 100), 1, 0);
  EXPECT_TRUE(testing::close(wide.narrow(1, 10, 100), at::mm(a, b), 1e-4));
  EXPECT_EQ(wide.narrow(1, 0, 10).abs().sum().item<float>(), 0);
  EXPECT_EQ(wide.narrow(1, 110, 10).abs().sum().item<float>(), 0);
}

TEST(Product, OfACpuIsOneOfTheTwo) {
  torch::manual_seed(3);
  for (const int64_t n : {8, 64, 130, 300}) {
    const Tensor a = torch::randn({n, n + 1}), b = torch::randn({n + 1, n + 2});
    Tensor by_mm = at::mm(a, b), d = torch::full_like(by_mm, NAN), by_onednn = d.clone();
    internal::cpu_product(a, b, d);
    const bool is_onednns = internal::takes_onednn(n, n + 1, n + 2);
    if (is_onednns) internal::onednn_product(a, b, by_onednn, 1, 0);
    EXPECT_TRUE(torch::equal(d, is_onednns ? by_onednn : by_mm)) << n;
  }
  EXPECT_FALSE(internal::takes_onednn(1, 4096, 4096));
  Tensor d = torch::full({3, 2}, 2.0, at::kBFloat16);
  internal::cpu_product(torch::ones({3, 4}, at::kBFloat16), torch::ones({4, 2}, at::kBFloat16), d,
                        1, 0.5);
  EXPECT_TRUE(torch::equal(d, torch::full_like(d, 5)));
}

TEST(Product, NamesWhatIsWrong) {
  const Tensor a = torch::ones({4, 6}), b = torch::ones({6, 8}), d = torch::ones({4, 8});
  EXPECT_THROW(product(a, a, d), UserError);
  EXPECT_THROW(product(a, b.to(at::kBFloat16), d), UserError);
  EXPECT_THROW(product(a, b, d.to(at::kBFloat16)), UserError);
  EXPECT_THROW(product(a, b, d, torch::ones({8, 4}).t()), UserError);
}

}  // namespace
}  // namespace flashstep
