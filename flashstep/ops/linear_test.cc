#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

struct Results {
  Tensor y, dx, dweight;
};

template <typename Function>
Results run(const Function& function, const Tensor& x_given, const Tensor& weight_given) {
  const Tensor x = x_given.detach().requires_grad_(),
               weight = weight_given.detach().requires_grad_();
  const Tensor y = function(x, weight);
  y.backward(at::sin(at::arange(y.numel(), at::kDouble)).view(y.sizes()).to(y.scalar_type()));
  return {y.detach(), x.grad(), weight.grad()};
}

Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed)).to(dtype);
}

// Against float64, with a rounding of values and gradients to `dtype`, of the largest.
void expect_close(const Tensor& got, const Tensor& oracle, at::ScalarType dtype,
                  const std::string& what) {
  const double unit = dtype == at::kFloat ? 5e-6 : dtype == at::kHalf ? 1e-3 : 8e-3;
  const double largest = oracle.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - oracle).abs().max().item<double>(), unit * largest) << what;
}

TEST(WidenedLinear, MatchesFloat64AtOddShapes) {
  struct Shape {
    std::vector<int64_t> x;
    int64_t out;
  };
  for (const Shape& shape : {Shape{{3, 5, 7}, 11},
                             {{1, 1}, 1},
                             {{1500, 33}, 65},
                             {{1500, 130}, 129},
                             {{2, 700, 600}, 3},
                             {{9}, 4},
                             {{513, 2049}, 5}}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto weight_dtype : {at::kFloat, dtype}) {
        const std::string what = flashstep::str(at::IntArrayRef(shape.x), " to ", shape.out, " ",
                                                dtype, " weight ", weight_dtype);
        const Tensor x = normal(shape.x, 1, dtype);
        const Tensor weight = normal({shape.out, shape.x.back()}, 2, weight_dtype);
        const Results got = run(
            [&](const Tensor& a, const Tensor& b) { return internal::widened_linear(a, b, dtype); },
            x, weight);
        // The gradient that comes in is rounded as it was there.
        const Tensor wide_x = x.to(at::kDouble).requires_grad_(),
                     wide_weight = weight.to(at::kDouble).requires_grad_();
        const Tensor y = at::linear(wide_x, wide_weight);
        y.backward(
            at::sin(at::arange(y.numel(), at::kDouble)).view(y.sizes()).to(dtype).to(at::kDouble));
        EXPECT_EQ(got.y.scalar_type(), dtype) << what;
        EXPECT_EQ(got.dx.scalar_type(), dtype) << what;
        EXPECT_EQ(got.dweight.scalar_type(), weight_dtype) << what;
        expect_close(got.y, y.detach(), dtype, what + " y");
        expect_close(got.dx, wide_x.grad(), dtype, what + " dx");
        expect_close(got.dweight, wide_weight.grad(), weight_dtype, what + " dweight");
      }
    }
  }
}

TEST(WidenedLinear, TakesViewsFrozenInputsAndNoRows) {
  const Tensor x = normal({6, 8, 5}, 3, at::kBFloat16).transpose(0, 1),
               weight = normal({5, 7}, 4).t();
  const auto widened = [](const Tensor& a, const Tensor& b) {
    return internal::widened_linear(a, b, at::kBFloat16);
  };
  const Results views = run(widened, x, weight),
                dense = run(widened, x.contiguous(), weight.contiguous());
  EXPECT_TRUE(views.y.equal(dense.y));
  EXPECT_TRUE(views.dx.equal(dense.dx));
  EXPECT_TRUE(views.dweight.equal(dense.dweight));

  const Tensor trained = weight.contiguous().requires_grad_();
  widened(x, trained).to(at::kFloat).sum().backward();  // x wants no gradient
  EXPECT_TRUE(trained.grad().defined());
  const Tensor input = x.contiguous().requires_grad_();
  widened(input, weight).to(at::kFloat).sum().backward();  // a frozen weight
  EXPECT_TRUE(input.grad().defined());
  const Results empty = run(widened, at::empty({0, 5}, at::kBFloat16), weight);
  EXPECT_EQ(empty.y.sizes(), at::IntArrayRef({0, 7}));
  EXPECT_EQ(empty.dweight.abs().sum().item<double>(), 0);
}

// Large enough for oneDNN, where this processor takes it.
TEST(Linear, OfFloat32MatchesFloat64) {
  const auto ours = [](const Tensor& a, const Tensor& b) { return flashstep::linear(a, b); };
  const auto torchs = [](const Tensor& a, const Tensor& b) { return at::linear(a, b); };
  const Tensor x = normal({4, 33, 130}, 1), weight = normal({150, 130}, 2);
  const Tensor views = normal({33, 4, 140}, 1).transpose(0, 1).narrow(2, 3, 130);
  for (const Tensor& input : {x, views}) {
    for (const Tensor& matrix : {weight, normal({130, 150}, 2).t()}) {
      const Results got = run(ours, input, matrix),
                    oracle = run(torchs, input.to(at::kDouble), matrix.to(at::kDouble));
      expect_close(got.y, oracle.y, at::kFloat, "y");
      expect_close(got.dx, oracle.dx, at::kFloat, "dx");
      expect_close(got.dweight, oracle.dweight, at::kFloat, "dweight");
    }
  }
  const Tensor trained = weight.clone().requires_grad_(), input = x.clone().requires_grad_();
  flashstep::linear(x, trained).sum().backward();
  flashstep::linear(input, weight).sum().backward();
  const Tensor sums = x.reshape({-1, 130}).to(at::kDouble).sum(0).expand({150, 130});
  expect_close(trained.grad(), sums, at::kFloat, "dweight of a sum");
  expect_close(input.grad(), weight.to(at::kDouble).sum(0).expand({4, 33, 130}), at::kFloat,
               "dx of a sum");
}

TEST(Linear, HasSecondDerivativesOnACpu) {
  const auto second = [](const auto& function, at::ScalarType dtype) {
    const Tensor x = normal({140, 130}, 1, dtype).requires_grad_(),
                 weight = normal({150, 130}, 2, dtype).requires_grad_();
    const auto first = torch::autograd::grad({function(x, weight).pow(2).sum()}, {x, weight}, {},
                                             std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, weight});
  };
  const auto got =
      second([](const Tensor& a, const Tensor& b) { return flashstep::linear(a, b); }, at::kFloat);
  const auto oracle =
      second([](const Tensor& a, const Tensor& b) { return at::linear(a, b); }, at::kDouble);
  for (size_t i = 0; i < 2; ++i) expect_close(got[i], oracle[i], at::kFloat, "second");
}

TEST(Linear, TellsTheShapeOnTheMetaDevice) {
  const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  EXPECT_EQ(flashstep::linear(at::empty({4, 33, 130}, meta), at::empty({150, 130}, meta)).sizes(),
            at::IntArrayRef({4, 33, 150}));
}

TEST(Linear, FollowsAutocast) {
  const Tensor x = normal({4, 6}, 5), weight = normal({3, 6}, 6);
  EXPECT_TRUE(flashstep::linear(x, weight).equal(at::linear(x, weight)))
      << "as it is without autocast";
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Results got =
      run([](const Tensor& a, const Tensor& b) { return flashstep::linear(a, b); }, x, weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(got.y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.dx.scalar_type(), at::kFloat);
  EXPECT_EQ(got.dweight.scalar_type(), at::kFloat);
  expect_close(got.y, at::linear(x.to(at::kDouble), weight.to(at::kDouble)), at::kBFloat16, "y");
  EXPECT_THROW(flashstep::linear(x, weight.t()), UserError);
  EXPECT_THROW(flashstep::linear(x, weight[0]), UserError);
}

TEST(Linear, KnowsWhatOneDnnMayUse) {
  using internal::isa_multiplies;
  for (const char* isa :
       {"AVX2", "avx2", "SSE41", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}) {
    EXPECT_FALSE(isa_multiplies(isa, at::kBFloat16)) << isa;
    EXPECT_FALSE(isa_multiplies(isa, at::kHalf)) << isa;
  }
  EXPECT_TRUE(isa_multiplies("AVX512_CORE_BF16", at::kBFloat16));
  EXPECT_FALSE(isa_multiplies("AVX512_CORE_BF16", at::kHalf));
  for (const char* isa : {"", "DEFAULT", "AVX512_CORE_AMX", "AVX10_1_512"}) {
    EXPECT_TRUE(isa_multiplies(isa, at::kBFloat16)) << isa;
  }
  EXPECT_TRUE(cpu_multiplies(at::kFloat));
  EXPECT_TRUE(products_note(at::kFloat).empty());
  EXPECT_EQ(products_note(at::kBFloat16).empty(), cpu_multiplies(at::kBFloat16));
}

}  // namespace
}  // namespace flashstep
