// The CUDA kernels against the reference in float64, by the rule for kernels; and what a training
// step asks of them: bits that repeat, CUDA graphs, side streams, autocast.
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/test_op_gpu.h"
#include "flashstep/products/product.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::expect_agreement_on_gpu;
using testing::kDtypes;
using testing::kGpu;
using testing::Op;
using testing::OpsGpu;
using testing::randn;
using testing::random_targets;
using testing::run;
using testing::unit_of;

const Op kRmsNorm = [](const auto& x) { return rms_norm(x[0], x[1], 1e-5); };
const Op kRmsNormReference = [](const auto& x) { return rms_norm_reference(x[0], x[1], 1e-5); };
const Op kSwiglu = [](const auto& x) { return swiglu(x[0], x[1]); };
const Op kSwigluReference = [](const auto& x) { return swiglu_reference(x[0], x[1]); };

// Around a vector of 8, a warp's row of 2,048, a block's of 8,192 and 16,384, primes, and more rows
// than there are partial sums.
const std::vector<std::vector<int64_t>> kShapes = {
    {1, 1},     {3, 7},     {5, 8},       {130, 31},  {2, 3, 129}, {0, 16},
    {4097, 24}, {67, 1600}, {2048, 768},  {5, 2047},  {6, 2048},   {7, 2056},
    {3, 8192},  {2, 8200},  {270, 16384}, {3, 16392}, {1100, 257}, {300, 2560}};

TEST_F(OpsGpu, RmsNormAgreesWithTheReference) {
  for (const auto& shape : kShapes) {
    expect_agreement_on_gpu(kRmsNorm, kRmsNormReference,
                            {randn(shape) * 3, torch::rand({shape.back()}, kGpu) + 0.5},
                            testing::shape_text(shape));
  }
}

TEST_F(OpsGpu, RmsNormAddsAResidualGradientInPlace) {
  for (const int64_t width : {24, 31, 1600, 4096}) {
    for (const auto dtype : kDtypes) {
      const Tensor x = randn({65, width}).to(dtype), dy = randn({65, width}).to(dtype);
      const Tensor weight = torch::rand({width}, kGpu) + 0.5;
      Tensor y = at::empty_like(x), rstd = at::empty({65}, weight.options());
      internal::rms_norm_forward_cuda(x, weight, 1e-5, y, rstd);
      const Tensor residual = randn({65, width}).to(dtype), alone = at::empty_like(x);
      const Tensor first = internal::rms_norm_backward_cuda(x, weight, rstd, dy, {}, alone);
      const Tensor expected = alone.to(at::kFloat) + residual.to(at::kFloat);
      const Tensor second =
          internal::rms_norm_backward_cuda(x, weight, rstd, dy, residual, residual);
      EXPECT_TRUE(testing::same_bits(second, first));
      EXPECT_TRUE(testing::close(residual, expected,
                                 2 * unit_of(dtype) * expected.abs().max().item<double>()));
    }
  }
}

TEST_F(OpsGpu, SwigluAgreesWithTheReference) {
  for (const auto& shape : kShapes)
    expect_agreement_on_gpu(kSwiglu, kSwigluReference, {randn(shape) * 4, randn(shape)},
                            testing::shape_text(shape));
  const Tensor far =
      torch::tensor({-1000.f, -104.f, -89.f, -87.f, 0.f, 87.f, 89.f, 104.f, 1000.f}, kGpu);
  expect_agreement_on_gpu(kSwiglu, kSwigluReference, {far, torch::ones({9}, kGpu)}, "far out");
}

// As a product of both weights leaves them: a and b are halves of rows of 2F.
TEST_F(OpsGpu, SwigluTakesHalvesOfRows) {
  for (const int64_t width : {8, 12, 6400}) {
    const Tensor both = randn({33, 2 * width}).to(at::kBFloat16);
    const Tensor a = both.narrow(1, 0, width), b = both.narrow(1, width, width);
    const Tensor dy = randn({33, width}).to(at::kBFloat16);
    Tensor y = at::empty_like(dy), again = at::empty_like(dy), da = at::empty_like(dy),
           db = at::empty_like(dy), y_dense = at::empty_like(dy);
    internal::swiglu_forward_cuda(a, b, y);
    internal::swiglu_forward_cuda(a.contiguous(), b.contiguous(), y_dense);
    EXPECT_TRUE(testing::same_bits(y, y_dense));
    internal::swiglu_backward_cuda(a.contiguous(), b.contiguous(), dy, da, db);
    internal::swiglu_backward_cuda(a, b, dy, a, b, again);  // in place
    EXPECT_TRUE(testing::same_bits(again, y));
    EXPECT_TRUE(testing::same_bits(a.contiguous(), da));
    EXPECT_TRUE(testing::same_bits(b.contiguous(), db));
  }
}

TEST_F(OpsGpu, RopeAgreesWithTheReference) {
  for (const int64_t d : {2, 6, 8, 18, 64, 80, 126, 128}) {
    for (const int64_t n : {1, 5, 513}) {
      const RotaryTables tables = rotary_tables(n + 3, d, 10000.0).slice(3, n).to(kGpu);
      const Op op = [&](const auto& in) { return rope(in[0], tables); };
      const Op reference = [&](const auto& in) { return rope_reference(in[0], tables); };
      const Tensor dense = randn({2, 3, n, d}), projected = randn({2, n, 3, d}).transpose(1, 2);
      expect_agreement_on_gpu(op, reference, {dense}, str("d ", d, " n ", n));
      expect_agreement_on_gpu(op, reference, {projected}, str("projected, d ", d, " n ", n));
      EXPECT_EQ(rope(projected, tables).strides(), projected.strides());
      const Tensor wide = randn({2, 3, n, d + 1});
      EXPECT_TRUE(testing::close(rope(wide.narrow(3, 1, d), tables),
                                 rope_reference(wide.narrow(3, 1, d), tables), 2e-6));
    }
  }
}

// Both products of a linear layer and all of the head's: near float64, and not TF32's distance.
TEST_F(OpsGpu, SplitProductsAreNearFloat64) {
  const Tensor targets = random_targets(300, 1001), rows = targets.view({3, 100});
  const Op layer = [](const auto& x) { return flashstep::linear(x[0].transpose(0, 1), x[1]); };
  const Op head = [&](const auto& x) { return linear_cross_entropy(x[0], x[1], rows); };
  const Op wide_layer = [](const auto& x) { return at::linear(x[0].transpose(0, 1), x[1]); };
  const Op wide_head = [&](const auto& x) {
    return cross_entropy_reference(at::linear(x[0], x[1]), rows);
  };
  const Tensor x = randn({3, 100, 64}), weight = randn({1001, 64}) / 8;
  set_float32_products(Float32Products::kSplit);
  const auto of_layer = run(layer, {x, weight}, at::kFloat, at::kFloat),
             of_head = run(head, {x, weight}, at::kFloat, at::kFloat);
  set_float32_products(Float32Products::kExact);
  const auto expect_near = [](const std::vector<Tensor>& got, const std::vector<Tensor>& oracle) {
    for (size_t i = 0; i < got.size(); ++i) {
      const double largest = oracle[i].abs().max().item<double>();
      EXPECT_LE((got[i].to(at::kDouble) - oracle[i]).abs().max().item<double>(), 1e-4 * largest)
          << i;
    }
  };
  expect_near(of_layer, run(wide_layer, {x, weight}, at::kFloat, at::kDouble));
  expect_near(of_head, run(wide_head, {x, weight}, at::kFloat, at::kDouble));
}

TEST_F(OpsGpu, EmbeddingSumsRowsOfEqualIds) {
  struct Size {
    int64_t positions, rows, width;
  };
  for (const Size& size :
       {Size{1, 3, 8}, Size{7, 2, 5}, Size{32, 1, 16}, Size{33, 1, 24}, Size{64, 64, 8},
        Size{1000, 40, 33}, Size{4099, 300, 1600}, Size{5000, 3, 64}, Size{0, 5, 8}}) {
    // Frequent ids beside rare ones, as in text.
    const Tensor ids = (torch::rand({size.positions}, kGpu).pow(3) * size.rows)
                           .to(at::kLong)
                           .clamp(0, size.rows - 1);
    expect_agreement_on_gpu([&](const auto& x) { return flashstep::embedding(x[0], ids); },
                            [&](const auto& x) { return at::embedding(x[0], ids); },
                            {randn({size.rows, size.width})},
                            str(size.positions, " of ", size.rows, " x ", size.width));
  }
}

TEST_F(OpsGpu, EmbeddingGivesTheGradientDtypeThatIsAskedFor) {
  const Tensor ids = random_targets(500, 20).view({5, 100});
  const Tensor dy = randn({5, 100, 24});
  std::vector<Tensor> gradients;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensor weight = torch::ones({20, 24}, kGpu).requires_grad_();
    weight.set_grad_dtype(dtype);
    flashstep::embedding(weight, ids).backward(dy);
    EXPECT_EQ(weight.grad().scalar_type(), dtype);
    gradients.push_back(weight.grad());
  }
  EXPECT_TRUE(testing::same_bits(gradients[1], gradients[0].to(at::kBFloat16)));
  EXPECT_THROW(flashstep::embedding(dy, ids), UserError);
  EXPECT_THROW(flashstep::embedding(dy[0], ids.to(at::kInt)), UserError);
}

// A part of a model: every operation once.
struct Part {
  Tensor x = randn({64, 96}), weight = torch::rand({96}, kGpu) + 0.5, head = randn({1000, 96});
  Tensor table = randn({10, 96}), ids = random_targets(64, 10);
  Tensor targets = random_targets(64, 1000);
  RotaryTables tables = rotary_tables(16, 24, 10000.0).to(kGpu);

  std::vector<Tensor> operator()() const {
    return run(
        [this](const auto& in) {
          const Tensor y = rms_norm(in[0], in[1], 1e-5);
          const Tensor turned = rope(y.view({4, 16, 4, 24}).transpose(1, 2), tables);
          const Tensor z = swiglu(turned.transpose(1, 2).reshape({64, 96}), y);
          const Tensor w = z + flashstep::embedding(in[3], ids);
          return linear_cross_entropy(w, in[2], targets) + cross_entropy(w, targets % 96);
        },
        {x, weight, head, table}, at::kBFloat16, at::kBFloat16);
  }
};

TEST_F(OpsGpu, RepeatTheirBits) {
  const Part part;
  const auto first = part();
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto again = part();
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(testing::same_bits(again[i], first[i]));
  }
}

TEST_F(OpsGpu, ComputeOnTheCurrentStreamAndInGraphs) {
  Part part;
  const auto expected = part();
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  at::cuda::device_synchronize();
  for (int warm_up = 0; warm_up < 2; ++warm_up) part();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto results = part();
  graph.capture_end();
  const Tensor kept = part.x.clone();
  part.x.zero_();
  graph.replay();
  EXPECT_FALSE(testing::same_bits(results[0].clone(), expected[0]));
  part.x.copy_(kept);
  graph.replay();
  at::cuda::device_synchronize();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(testing::same_bits(results[i], expected[i])) << i;
}

}  // namespace
}  // namespace flashstep
