// Matrices of 8 bits against LibTorch's own conversions, and products of them against float64.
#include <ATen/autocast_mode.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/float8.h"
#include "flashstep/ops/test_op_gpu.h"
#include "flashstep/products/product.h"

namespace flashstep {
namespace {

using at::Tensor;
using internal::Float8Layout;
using internal::Float8Matrix;
using testing::kGpu;
using testing::randn;
using testing::same_bits;

class Float8Gpu : public testing::OpsGpu {
 protected:
  void SetUp() override {
    testing::OpsGpu::SetUp();
    if (!IsSkipped() && !has_scaled_products(kGpu)) GTEST_SKIP() << "a GPU without float8";
  }
};

Tensor short_randn(at::IntArrayRef sizes) { return randn(sizes).to(at::kBFloat16); }

float most_of(at::ScalarType type) { return type == at::kFloat8_e5m2 ? 57344 : 448; }

Tensor bits(const Tensor& x) { return x.view(at::kByte); }

// Around a vector of 8, a tile of 128 and rows that are no multiple of 16.
const std::vector<std::vector<int64_t>> kShapes = {{1, 16},    {7, 32},    {16, 16},  {127, 128},
                                                   {128, 144}, {129, 112}, {300, 48}, {1000, 1600}};

TEST_F(Float8Gpu, RoundsAsLibTorchAndTransposes) {
  for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(testing::shape_text(shape));
      const Tensor x = short_randn(shape) * 37;
      const Tensor largest = internal::largest_of(x);
      ASSERT_EQ(largest.item<float>(), x.abs().max().item<float>());
      const Float8Matrix got = internal::to_float8(x, type, Float8Layout::kBoth, largest);
      const float scale = largest.item<float>() / most_of(type);
      ASSERT_EQ(got.scale.item<float>(), scale);
      const Tensor expected = (x.to(at::kFloat) * (1 / scale)).clamp(-most_of(type), most_of(type));
      ASSERT_TRUE(same_bits(bits(got.rows), bits(expected.to(type))));
      const int64_t height = shape[0];
      ASSERT_EQ(got.columns.size(1), (height + 15) / 16 * 16);
      const Tensor columns = bits(got.columns);
      ASSERT_TRUE(
          same_bits(columns.narrow(1, 0, height).contiguous(), bits(got.rows).t().contiguous()));
      ASSERT_EQ(columns.narrow(1, height, columns.size(1) - height).sum().item<int64_t>(), 0);
      // Alone, and of the scale that is known.
      const auto rows = internal::to_float8_again(x, type, Float8Layout::kRows, got.scale);
      const auto transposed = internal::to_float8_again(x, type, Float8Layout::kColumns, got.scale);
      ASSERT_FALSE(rows.columns.defined() || transposed.rows.defined());
      ASSERT_TRUE(same_bits(bits(rows.rows), bits(got.rows)));
      ASSERT_TRUE(same_bits(bits(transposed.columns), columns));
    }
  }
}

TEST_F(Float8Gpu, ZerosAndWhatIsNotFinite) {
  const auto product_of = [](const Tensor& x) {
    const auto a =
        internal::to_float8(x, at::kFloat8_e5m2, Float8Layout::kRows, internal::largest_of(x));
    const Tensor d = at::empty({x.size(0), x.size(0)}, x.options());
    scaled_product(a.by_rows(),
                   internal::to_float8(at::ones_like(x), at::kFloat8_e4m3fn, Float8Layout::kRows,
                                       internal::largest_of(at::ones_like(x)))
                       .by_rows(),
                   d);
    return d;
  };
  const Tensor x = at::zeros({32, 64}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  EXPECT_EQ(product_of(x).abs().max().item<float>(), 0);
  EXPECT_TRUE(product_of(x + 1e-38).isfinite().all().item<bool>());
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    const Tensor with_odd = short_randn({32, 64});
    with_odd[3][5] = odd;
    EXPECT_EQ(internal::largest_of(with_odd).isfinite().item<bool>(), false) << odd;
    EXPECT_TRUE(product_of(with_odd).isnan().all().item<bool>()) << odd;
  }
}

// Kernels that note the largest number of what they make, at every width they go by.
TEST_F(Float8Gpu, KernelsNoteTheLargest) {
  for (const int64_t width : {24, 31, 768, 2056, 8200, 16392}) {
    SCOPED_TRACE(width);
    const Tensor x = short_randn({65, width}), dy = short_randn({65, width});
    const Tensor weight = torch::rand({width}, kGpu) + 0.5;
    const Tensor y = at::empty_like(x), rstd = at::empty({65}, weight.options()),
                 dx = at::empty_like(x);
    const auto expect_largest = [](const Tensor& largest, const Tensor& of) {
      // What is written is rounded to bfloat16, the largest is not.
      const float expected = of.abs().max().item<float>();
      EXPECT_NEAR(largest.item<float>(), expected, 4e-3 * expected);
    };
    const auto none = [&] { return at::zeros({}, weight.options()); };
    const Tensor of_y = none(), of_dx = none(), of_h = none(), of_gates = none();
    internal::rms_norm_forward_cuda(x, weight, 1e-5, y, rstd, of_y);
    expect_largest(of_y, y);
    internal::rms_norm_backward_cuda(x, weight, rstd, dy, {}, dx, {}, of_dx);
    expect_largest(of_dx, dx);
    internal::swiglu_forward_cuda(x, dy, y, of_h);
    expect_largest(of_h, y);
    const Tensor da = at::empty_like(x), db = at::empty_like(x);
    internal::swiglu_backward_cuda(x, dy, dy, da, db, {}, of_gates);
    expect_largest(of_gates, at::cat({da, db}));
    x[2][3] = NAN;
    const Tensor odd = none();
    internal::swiglu_forward_cuda(x, dy, y, odd);
    EXPECT_TRUE(odd.isnan().item<bool>());
  }
}

// In one kernel, against three that write 16 bits between them.
TEST_F(Float8Gpu, SwigluBackwardRoundsItsResults) {
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(testing::shape_text(shape));
    const int64_t height = shape[0], width = shape[1];
    const Tensor gates = short_randn({height, 2 * width}), dy = short_randn(shape);
    const Tensor a = gates.narrow(1, 0, width), b = gates.narrow(1, width, width);
    const Tensor y = at::empty_like(dy), both = at::empty_like(gates);
    const Tensor largest = at::zeros({}, kGpu), largest_y = at::zeros({}, kGpu);
    internal::swiglu_forward_cuda(a, b, y, largest_y);
    const Tensor again = at::empty_like(y);
    internal::swiglu_backward_cuda(a, b, dy, both.narrow(1, 0, width), both.narrow(1, width, width),
                                   again, largest);
    const Float8Matrix of_y =
        internal::to_float8(again, at::kFloat8_e4m3fn, Float8Layout::kColumns, largest_y);
    const Float8Matrix of_both =
        internal::to_float8(both, at::kFloat8_e5m2, Float8Layout::kBoth, largest);
    const auto got = internal::swiglu_backward_in_float8(a, b, dy, of_y.scale);
    EXPECT_TRUE(same_bits(got.gradients.scale, of_both.scale));
    EXPECT_TRUE(same_bits(bits(got.gradients.rows), bits(of_both.rows)));
    EXPECT_TRUE(same_bits(bits(got.gradients.columns), bits(of_both.columns)));
    EXPECT_TRUE(same_bits(bits(got.y_columns), bits(of_y.columns)));
  }
}

TEST_F(Float8Gpu, ProductsAgreeWithFloat64) {
  const auto operand = [](int64_t rows, int64_t width, at::ScalarType type) {
    const Tensor x = short_randn({rows, width}) + 0.5;  // whose sums grow with K
    return internal::to_float8(x, type, Float8Layout::kRows, internal::largest_of(x)).by_rows();
  };
  const auto wide = [](const ScaledMatrix& x) { return x.values.to(at::kDouble) * x.scale; };
  for (const auto& [m, n, k] :
       {std::tuple{1, 16, 16}, {7, 48, 32}, {257, 160, 1600}, {64, 64, 16384}}) {
    for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const auto result : {at::kBFloat16, at::kFloat}) {
        SCOPED_TRACE(flashstep::str(m, " ", n, " ", k, " ", type, " ", result));
        const auto a = operand(m, k, type), b = operand(n, k, at::kFloat8_e4m3fn);
        const Tensor exact = at::mm(wide(a), wide(b).t());
        const Tensor d = at::full({m, n}, NAN, at::TensorOptions(kGpu).dtype(result));
        const Tensor allowed =
            2e-3 * exact.abs().max() + (result == at::kFloat ? 0 : 4e-3) * exact.abs();
        scaled_product(a, b, d);
        EXPECT_TRUE(testing::close_within(d, exact, allowed));
        const Tensor c = randn({m, n}).to(result), sum = exact + c.to(at::kDouble);
        scaled_product(a, b, c, c);
        EXPECT_TRUE(
            testing::close_within(c, sum, allowed + (result == at::kFloat ? 0 : 4e-3) * sum.abs()));
        if (m % 16 != 0) continue;
        const Tensor turned = at::full({n, m}, NAN, d.options());  // e5m2 on the other side
        scaled_product(b, a, turned);
        EXPECT_TRUE(testing::close_within(turned, exact.t(), allowed.t()));
      }
    }
  }
}

TEST_F(Float8Gpu, ProductsSayWhatTheyExpect) {
  const auto matrix = [](int64_t rows, int64_t width, at::ScalarType type) {
    return ScaledMatrix{
        at::zeros({rows, width}, at::TensorOptions(kGpu).dtype(at::kByte)).view(type),
        at::ones({}, kGpu)};
  };
  const Tensor d = at::empty({32, 16}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  const auto a = matrix(32, 48, at::kFloat8_e5m2), b = matrix(16, 48, at::kFloat8_e4m3fn);
  scaled_product(a, b, d);
  EXPECT_THROW(scaled_product(a, matrix(16, 48, at::kFloat8_e5m2), d), UserError);
  EXPECT_THROW(scaled_product(a, matrix(16, 32, at::kFloat8_e4m3fn), d), UserError);
  EXPECT_THROW(
      scaled_product(matrix(32, 40, at::kFloat8_e5m2), matrix(16, 40, at::kFloat8_e4m3fn), d),
      UserError);
  EXPECT_THROW(
      scaled_product(a, matrix(24, 48, at::kFloat8_e4m3fn), at::empty({32, 24}, d.options())),
      UserError);
  EXPECT_THROW(scaled_product(a, {b.values.to(at::kFloat), b.scale}, d), UserError);
  EXPECT_THROW(scaled_product(a, b, d.to(at::kHalf)), UserError);
  EXPECT_THROW(scaled_product(a, b, d, at::empty({32, 32}, d.options())), UserError);
}

// float8_linear against linear in float64: what rounding to 8 bits changes.
double error_of(const Tensor& got, const Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

TEST_F(Float8Gpu, LinearAndItsGradients) {
  for (const auto& sizes : {std::vector<int64_t>{3, 21, 64}, {1, 256}, {512, 128}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(flashstep::str(testing::shape_text(sizes), " ", dtype));
      std::optional<AutocastGuard> autocast;
      if (dtype == at::kFloat) autocast.emplace(at::kCUDA, at::kBFloat16);
      const Tensor x = randn(sizes).to(dtype).requires_grad_();
      const Tensor weight = randn({96, sizes.back()}).to(dtype).requires_grad_();
      const Tensor y = float8_linear(x, weight);
      ASSERT_EQ(y.scalar_type(), at::kBFloat16);
      const Tensor dy = short_randn(y.sizes());
      y.backward(dy);
      autocast.reset();
      const Tensor wide_x = x.detach().to(at::kDouble).requires_grad_();
      const Tensor wide_weight = weight.detach().to(at::kDouble).requires_grad_();
      const Tensor expected = at::linear(wide_x, wide_weight);
      expected.backward(dy.to(at::kDouble));
      EXPECT_EQ(x.grad().scalar_type(), dtype);
      EXPECT_EQ(weight.grad().scalar_type(), dtype);
      // Two roundings to 3 bits of fraction, 2.6 % each of a number as they are spread; a
      // gradient's to 2 bits twice that.
      EXPECT_LT(error_of(y, expected), 0.045);
      EXPECT_GT(error_of(y, expected), 0.02) << "not of 8 bits";
      EXPECT_LT(error_of(x.grad(), wide_x.grad()), 0.07);
      EXPECT_LT(error_of(weight.grad(), wide_weight.grad()), 0.07);
      // Once more: added up in float32 by the product, or by autograd.
      const Tensor first = weight.grad().clone();
      if (dtype == at::kFloat) autocast.emplace(at::kCUDA, at::kBFloat16);
      float8_linear(x, weight).backward(dy);
      EXPECT_LT(error_of(weight.grad(), 2 * first.to(at::kDouble)),
                dtype == at::kFloat ? 1e-6 : 4e-3);
    }
  }
  EXPECT_THROW(float8_linear(short_randn({4, 24}), short_randn({32, 24})), UserError);
  EXPECT_THROW(float8_linear(short_randn({4, 32}), short_randn({24, 32})), UserError);
  EXPECT_THROW(float8_linear(randn({4, 32}), randn({32, 32})), UserError);
  EXPECT_THROW(float8_linear(short_randn({4, 32}).cpu(), short_randn({32, 32}).cpu()), UserError);
  // No tokens, and a float32 weight.
  const Tensor weight = randn({48, 32}).requires_grad_();
  const Tensor none = float8_linear(short_randn({0, 32}), weight);
  EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 48}));
  none.sum().backward();
  EXPECT_EQ(weight.grad().abs().max().item<float>(), 0);
}

// Rows that begin anywhere, weights that lie by columns, and one gradient alone.
TEST_F(Float8Gpu, LinearTakesWhateverLies) {
  const Tensor x = short_randn({64 * 32 + 1}).narrow(0, 1, 64 * 32).view({64, 32});
  const Tensor weight = short_randn({32, 48}).t();
  const Tensor expected = float8_linear(x.clone(), weight.contiguous());
  EXPECT_TRUE(same_bits(float8_linear(x, weight), expected));
  const Tensor leaf = weight.contiguous().requires_grad_();
  float8_linear(x, leaf).sum().backward();
  EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>());
  const Tensor input = x.clone().requires_grad_();
  float8_linear(input, weight).sum().backward();
  EXPECT_TRUE(input.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace flashstep
