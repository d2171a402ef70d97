#include "flashstep/products/product.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/products/cpu/packed.h"
#include "flashstep/products/cpu_product.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"

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

// LibTorch's call of oneDNN wants AVX-512, of float32, too; so does who takes it (cpu_multiplier).
bool has_onednn() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

using CpuProduct = void (*)(const Tensor&, const Tensor&, const Tensor&, bool);

void expect_close_to_mm(CpuProduct product_of, const Tensor& a, const Tensor& b) {
  const Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble)).to(at::kFloat);
  const double bound = 1e-6 * static_cast<double>(a.size(1));
  const Tensor d = torch::full({a.size(0), b.size(1)}, NAN), before = torch::randn(d.sizes());
  product_of(a, b, d, false);
  EXPECT_TRUE(testing::close(d, expected, bound));
  d.copy_(before);
  product_of(a, b, d, true);
  EXPECT_TRUE(testing::close(d, before + expected, bound));
  const Tensor again = before.clone();
  product_of(a, b, again, true);
  EXPECT_TRUE(torch::equal(d, again));
}

void expect_products(CpuProduct product_of) {
  torch::manual_seed(3);
  for (const int64_t m : {1, 67, 200}) {
    const Tensor a = torch::randn({m, 130}), b = torch::randn({130, 99});
    expect_close_to_mm(product_of, a, b);
    expect_close_to_mm(product_of, a, torch::randn({99, 130}).t());
    expect_close_to_mm(product_of, torch::randn({130, m}).t(), b);
    expect_close_to_mm(product_of, torch::randn({m, 140}).narrow(1, 3, 130),
                       torch::randn({130, 103}).narrow(1, 1, 99));
    expect_close_to_mm(product_of, torch::randn({1, 1}).expand({m, 130}), b);
    expect_close_to_mm(product_of, torch::randn({130}).expand({m, 130}),
                       torch::randn({1, 99}).expand({130, 99}));
  }
  Tensor wide = torch::zeros({70, 120});
  const Tensor a = torch::randn({70, 80}), b = torch::randn({80, 100});
  product_of(a, b, wide.narrow(1, 10, 100), false);
  EXPECT_TRUE(testing::close(wide.narrow(1, 10, 100), at::mm(a, b), 1e-4));
  EXPECT_EQ(wide.narrow(1, 0, 10).abs().sum().item<float>(), 0);
  EXPECT_EQ(wide.narrow(1, 110, 10).abs().sum().item<float>(), 0);
}

TEST(Product, OneDnnsIsTheSame) {
  if (!has_onednn()) GTEST_SKIP() << "LibTorch's products by oneDNN want AVX-512";
  expect_products(internal::onednn_product);
}

TEST(Product, OursIsTheSame) {
  if (!packed::is_available()) GTEST_SKIP() << "our own products want AVX2";
  expect_products(internal::packed_product);
  torch::manual_seed(3);
  // Sizes around the kernel's tile, and around what is packed at once.
  for (const int64_t n : {1, 5, 6, 7, 8, 9, 15, 16, 17}) {
    expect_close_to_mm(internal::packed_product, torch::randn({n, n + 1}),
                       torch::randn({n + 1, n + 2}));
    expect_close_to_mm(internal::packed_product, torch::randn({n + 1, n}).t(),
                       torch::randn({n + 2, n + 1}).t());
  }
  for (const int64_t off : {-1, 0, 1}) {
    const int64_t m = packed::kBlockRows + off, k = packed::kBlockDepth + off;
    const int64_t n = packed::kBlockColumns + off;
    expect_close_to_mm(internal::packed_product, torch::randn({m, k}), torch::randn({n, k}).t());
    expect_close_to_mm(internal::packed_product, torch::randn({k, m}).t(), torch::randn({k, n}));
  }
  // Steps that overlap, the last at the end of its memory.
  for (const int64_t along : {0, 1, 2, 3}) {
    const Tensor a = torch::rand({96 + 65 * along}).as_strided({96, 66}, {1, along});
    const Tensor b = torch::rand({100 + 65 * along}).as_strided({66, 100}, {along, 1});
    expect_close_to_mm(internal::packed_product, a, b);
  }
}

TEST(Product, OursDoesNotDependOnThreadsOrOtherRows) {
  if (!packed::is_available()) GTEST_SKIP() << "our own products want AVX2";
  torch::manual_seed(3);
  const Tensor a = torch::randn({333, 300}), b = torch::randn({300, 290});
  const int threads = at::get_num_threads();
  const auto by = [&](int count, const Tensor& rows) {
    at::set_num_threads(count);
    const Tensor d = torch::full({rows.size(0), b.size(1)}, NAN);
    internal::packed_product(rows, b, d, false);
    at::set_num_threads(threads);
    return d;
  };
  const Tensor one = by(1, a);
  for (const int count : {2, 3, 7, 16}) EXPECT_TRUE(torch::equal(by(count, a), one)) << count;
  EXPECT_TRUE(torch::equal(by(2, a.narrow(0, 100, 77)), one.narrow(0, 100, 77)));
}

TEST(Product, OursKeepsInfinityAndNanInTheirRows) {
  if (!packed::is_available()) GTEST_SKIP() << "our own products want AVX2";
  Tensor a = torch::ones({7, 9}), b = torch::ones({9, 17}), d = torch::empty({7, 17});
  a[6][8] = INFINITY;
  b[0][16] = NAN;
  internal::packed_product(a, b, d, false);
  EXPECT_TRUE(torch::equal(d.narrow(0, 0, 6).narrow(1, 0, 16), torch::full({6, 16}, 9.0)));
  EXPECT_TRUE(d[6].narrow(0, 0, 16).isinf().all().item<bool>());
  EXPECT_TRUE(d.select(1, 16).isnan().all().item<bool>());
}

TEST(Product, OfACpuIsOneOfTheThree) {
  torch::manual_seed(3);
  for (const int64_t n : {8, 64, 130, 300}) {
    const Tensor a = torch::randn({n, n + 1}), b = torch::randn({n + 1, n + 2});
    Tensor expected = at::mm(a, b), d = torch::full_like(expected, NAN);
    internal::cpu_product(a, b, d);
    const auto by = internal::cpu_multiplier(n, n + 1, n + 2);
    if (by == internal::CpuMultiplier::kOneDnn) internal::onednn_product(a, b, expected, false);
    if (by == internal::CpuMultiplier::kPacked) internal::packed_product(a, b, expected, false);
    EXPECT_TRUE(torch::equal(d, expected)) << n;
  }
  EXPECT_EQ(internal::cpu_multiplier(1, 4096, 4096), internal::CpuMultiplier::kMkl);
  Tensor d = torch::full({3, 2}, 2.0, at::kBFloat16);
  internal::cpu_product(torch::ones({3, 4}, at::kBFloat16), torch::ones({4, 2}, at::kBFloat16), d,
                        /*adds=*/true);
  EXPECT_TRUE(torch::equal(d, torch::full_like(d, 6)));
}

TEST(Product, OfABatch) {
  at::manual_seed(3);
  const Tensor a = at::randn({2, 3, 4}), b = at::randn({2, 5, 4}).transpose(1, 2),
               c = at::randn({2, 3, 5}), d = at::empty_like(c);
  batched_product(a, b, d);
  EXPECT_TRUE(at::allclose(d, at::bmm(a, b)));
  batched_product(a, b, d, 0.5, c, -2);
  EXPECT_TRUE(at::allclose(d, 0.5 * at::bmm(a, b) - 2 * c, 1e-5, 1e-5));
  EXPECT_THROW(batched_product(a, a, d), UserError);
  EXPECT_THROW(batched_product(a, b, c[0]), UserError);
  EXPECT_THROW(batched_product(a, b, d, 1, c.to(at::kDouble)), UserError);
}

TEST(Product, NamesWhatIsWrong) {
  const Tensor a = torch::ones({4, 6}), b = torch::ones({6, 8}), d = torch::ones({4, 8});
  const Tensor far = torch::ones({6, 8}, at::kMeta);
  const auto says = testing::expect_sentence;
  says([&] { product(a, a, d); }, {"expected a (M, K) and b (K, N)", "[4, 6] of Float"});
  says([&] { product(a, b.to(at::kBFloat16), d); }, {"of one dtype", "[6, 8] of BFloat16"});
  says([&] { product(a, far, d); }, {"[4, 6] of Float with strides [6, 1] on cpu", "on meta"});
  says([&] { product(a, b, d.to(at::kBFloat16)); }, {"a's dtype or float32", "of BFloat16"});
  says([&] { product(a, b, d.to(at::kMeta)); }, {"on cpu", "got [4, 8] of Float", "on meta"});
  says([&] { product(a, b, torch::ones({8, 4}).t()); }, {"with dense rows", "strides [1, 4]"});
  says(
      [&] {
        product(a, b, d, torch::ones({8, 4}).t());
      },
      {"expected c like d, [4, 8] of Float with strides [8, 1] on cpu, got [4, 8]", "[1, 4]"});
  for (const auto dtype : {at::kDouble, at::kLong}) {
    testing::expect_sentence([&] { product(a.to(dtype), b.to(dtype), d.to(dtype)); },
                             {"float32, bfloat16 or float16", c10::toString(dtype)});
  }
}

}  // namespace
}  // namespace flashstep
