// Products of every layout against float64.
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/error.h"
#include "flashstep/products/product.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

const at::Device kGpu(at::kCUDA, 0);

class ProductGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(5);
  }
};

Tensor randn(at::IntArrayRef shape, at::ScalarType dtype) {
  return torch::randn(shape, at::TensorOptions(kGpu)).to(dtype);
}

// (rows, columns), by rows or by columns in memory.
Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype, bool by_columns) {
  return by_columns ? randn({columns, rows}, dtype).t() : randn({rows, columns}, dtype);
}

void expect_product(const Tensor& a, const Tensor& b, at::ScalarType result, bool adds) {
  const Tensor oracle = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  Tensor d = at::full(oracle.sizes(), NAN, a.options().dtype(result));
  const Tensor c = adds ? randn(oracle.sizes(), result) : Tensor();
  product(a, b, d, c);
  const Tensor expected = adds ? oracle + c.to(at::kDouble) : oracle;
  // Sums of K products in float32, in any order; what is added is added to the rounded product.
  const double k = static_cast<double>(a.size(1));
  const double unit = result == at::kFloat ? 6e-8 : result == at::kHalf ? 5e-4 : 4e-3;
  const Tensor allowed = 4e-7 * k + unit * (2 * expected.abs() + oracle.abs());
  const auto expect_close = [&](const Tensor& got) {
    EXPECT_TRUE(testing::close_within(got, expected, allowed))
        << a.sizes() << a.strides() << b.sizes() << b.strides() << result << adds;
  };
  expect_close(d);
  if (!adds) return;
  product(a, b, c, c);  // in place
  expect_close(c);
}

TEST_F(ProductGpu, AgreesWithFloat64) {
  const std::vector<std::vector<int64_t>> sizes = {{1, 1, 1},     {1, 64, 8},    {8, 1, 16},
                                                   {5, 7, 3},     {257, 33, 65}, {128, 1600, 256},
                                                   {64, 64, 2048}};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& size : sizes) {
      for (int layout = 0; layout < 4; ++layout) {
        const Tensor a = matrix(size[0], size[2], dtype, layout & 1);
        const Tensor b = matrix(size[2], size[1], dtype, layout & 2);
        for (const auto result : {dtype, at::kFloat}) {
          expect_product(a, b, result, false);
          expect_product(a, b, result, true);
        }
      }
    }
  }
}

TEST_F(ProductGpu, TakesPartsOfMatrices) {
  const Tensor wide = randn({64, 96}, at::kBFloat16);
  expect_product(wide.narrow(1, 32, 48), randn({48, 40}, at::kBFloat16), at::kBFloat16, true);
  expect_product(wide.narrow(0, 8, 40).t(), wide.narrow(0, 8, 40), at::kFloat, false);
}

TEST_F(ProductGpu, RepeatsItsBits) {
  const Tensor a = randn({512, 4096}, at::kBFloat16), b = randn({4096, 256}, at::kBFloat16);
  Tensor first = at::empty({512, 256}, a.options()), again = at::empty_like(first);
  product(a, b, first);
  for (int repeat = 0; repeat < 5; ++repeat) {
    product(a, b, again);
    EXPECT_TRUE(testing::same_bits(again, first));
  }
}

TEST_F(ProductGpu, NamesWhatIsWrong) {
  const Tensor a = randn({4, 6}, at::kBFloat16), b = randn({6, 8}, at::kBFloat16);
  const Tensor d = randn({4, 8}, at::kBFloat16);
  EXPECT_THROW(product(a, a, d), UserError);
  EXPECT_THROW(product(a, b.to(at::kHalf), d), UserError);
  EXPECT_THROW(product(a, b, d.to(at::kHalf)), UserError);
  EXPECT_THROW(product(a, b, d.t()), UserError);
  EXPECT_THROW(product(a, b, d, d.to(at::kFloat)), UserError);
  EXPECT_THROW(product(at::empty({4, 12}, a.options()).slice(1, 0, 12, 2), b, d), UserError);
}

}  // namespace
}  // namespace flashstep
