// The CUDA kernels against the reference in float64, by the rule for kernels; and what a training
// step asks of them: bits that repeat, CUDA graphs, side streams, autocast.
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/products/product.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using Op = std::function<Tensor(const std::vector<Tensor>&)>;
using testing::kGpu;

const at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

class OpsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(11);
  }
};

Tensor randn(at::IntArrayRef shape) {
  return torch::randn(shape, at::TensorOptions(kGpu).dtype(at::kFloat));
}
Tensor random_targets(int64_t rows, int64_t classes) {
  return torch::randint(classes, {rows}, at::TensorOptions(kGpu).dtype(at::kLong));
}

// Output and gradients at `inputs` rounded to `dtype` and computed in `compute`, under a gradient
// that is a fixed function of the output's shape.
std::vector<Tensor> run(const Op& op, const std::vector<Tensor>& inputs, at::ScalarType dtype,
                        at::ScalarType compute) {
  std::vector<Tensor> x;
  for (const Tensor& t : inputs) {
    x.push_back(
        t.to(dtype).to(compute).detach().clone(at::MemoryFormat::Preserve).requires_grad_());
  }
  const Tensor y = op(x);
  const Tensor dy =
      at::sin(at::arange(y.numel(), y.options().dtype(at::kDouble))).view(y.sizes()).to(dtype);
  y.backward((y.dim() == 0 ? dy + 0.75 : dy).to(y.scalar_type()));
  std::vector<Tensor> results = {y.detach()};
  for (const Tensor& t : x) results.push_back(t.grad());
  return results;
}

double unit_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 6e-7 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

void expect_agreement(const Op& op, const Op& reference, const std::vector<Tensor>& inputs,
                      const std::string& what) {
  for (const auto dtype : kDtypes) {
    const auto got = run(op, inputs, dtype, dtype), naive = run(reference, inputs, dtype, dtype),
               oracle = run(reference, inputs, dtype, at::kDouble);
    for (size_t i = 0; i < got.size(); ++i) {
      if (oracle[i].numel() == 0) continue;
      EXPECT_EQ(got[i].scalar_type(), naive[i].scalar_type()) << what;
      EXPECT_TRUE(got[i].is_cuda());
      const double largest = oracle[i].abs().max().item<double>();  // one rounding of it
      EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i],
                                              unit_of(dtype) * largest + 1e-30))
          << what << " " << dtype << (i ? " gradient " : " output ") << i;
    }
  }
}

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
    expect_agreement(kRmsNorm, kRmsNormReference,
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
    expect_agreement(kSwiglu, kSwigluReference, {randn(shape) * 4, randn(shape)},
                     testing::shape_text(shape));
  const Tensor far =
      torch::tensor({-1000.f, -104.f, -89.f, -87.f, 0.f, 87.f, 89.f, 104.f, 1000.f}, kGpu);
  expect_agreement(kSwiglu, kSwigluReference, {far, torch::ones({9}, kGpu)}, "far out");
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
      expect_agreement(op, reference, {dense}, str("d ", d, " n ", n));
      expect_agreement(op, reference, {projected}, str("projected, d ", d, " n ", n));
      EXPECT_EQ(rope(projected, tables).strides(), projected.strides());
      const Tensor wide = randn({2, 3, n, d + 1});
      EXPECT_TRUE(testing::close(rope(wide.narrow(3, 1, d), tables),
                                 rope_reference(wide.narrow(3, 1, d), tables), 2e-6));
    }
  }
}

TEST_F(OpsGpu, CrossEntropyAgreesWithTheReference) {
  for (const int64_t classes : {1, 7, 8, 1000, 4096, 10000, 12296, 32768, 50257, 50304, 65544}) {
    for (const int64_t rows : {1, 70}) {
      const Tensor targets = random_targets(rows, classes);
      expect_agreement([&](const auto& x) { return cross_entropy(x[0], targets); },
                       [&](const auto& x) { return cross_entropy_reference(x[0], targets); },
                       {randn({rows, classes}) * 5}, str(rows, " rows of ", classes));
    }
  }
}

TEST_F(OpsGpu, CrossEntropyOfNumbersThatAreNone) {
  const Tensor targets = torch::tensor({1}, at::TensorOptions(kGpu).dtype(at::kLong));
  for (const int64_t classes : {40, 37}) {
    const auto loss = [&](float a, float b, int64_t target = 1) {
      Tensor x = torch::zeros({1, classes}, kGpu);
      x[0][0] = a;
      x[0][1] = b;
      return cross_entropy(x, at::full_like(targets, target)).item<float>();
    };
    const double others = static_cast<double>(classes - 1);
    EXPECT_NEAR(loss(1e4f, 1e4f), std::log(2.0), 1e-3);
    EXPECT_FLOAT_EQ(loss(3e38f, 0), 3e38f);
    EXPECT_NEAR(loss(-INFINITY, 0), std::log(others), 1e-5);
    EXPECT_TRUE(std::isnan(loss(NAN, 0)));
    EXPECT_TRUE(std::isnan(loss(0, NAN)));
    EXPECT_FALSE(std::isfinite(loss(INFINITY, 0)));
    const Tensor masked = torch::full({1, classes}, -INFINITY, kGpu);
    EXPECT_TRUE(std::isnan(cross_entropy(masked, targets).item<float>()));
    masked[0][1] = 3;
    EXPECT_NEAR(cross_entropy(masked, targets).item<float>(), 0, 1e-6);
    masked[0][0] = NAN;
    EXPECT_TRUE(std::isnan(cross_entropy(masked, targets).item<float>()));
    EXPECT_TRUE(std::isnan(loss(0, 0, -1)));
    EXPECT_TRUE(std::isnan(loss(0, 0, classes)));
  }
}

Op fused_loss(const Tensor& targets) {
  return [=](const auto& x) { return linear_cross_entropy(x[0], x[1], targets); };
}
Op unfused_loss(const Tensor& targets) {
  return [=](const auto& x) { return cross_entropy_reference(at::linear(x[0], x[1]), targets); };
}

TEST_F(OpsGpu, LinearCrossEntropyAgreesWithTheReference) {
  // The last takes several chunks, of 4,096 rows at most.
  const std::vector<std::vector<int64_t>> sizes = {
      {1, 8, 16},      {70, 33, 257},    {512, 64, 1000},   {1, 8, 13},
      {600, 64, 6442}, {900, 32, 50257}, {3400, 64, 10000}, {9001, 48, 10000}};
  for (const auto& size : sizes) {
    const Tensor targets = random_targets(size[0], size[2]);
    expect_agreement(fused_loss(targets), unfused_loss(targets),
                     {randn({size[0], size[1]}), randn({size[2], size[1]})},
                     testing::shape_text(size));
  }
}

// What a second backward finds in .grad, it adds to, in its place.
TEST_F(OpsGpu, WeightsGradientsAreAddedUp) {
  using Loss = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& ids)>;
  const std::vector<Loss> losses = {[](const auto& x, const auto& weight, const auto& ids) {
                                      return linear_cross_entropy(x, weight, ids);
                                    },
                                    [](const auto& x, const auto& weight, const auto& ids) {
                                      return (flashstep::embedding(weight, ids) * x).sum();
                                    }};
  for (const int64_t rows : {70, 9001}) {
    for (const Loss& loss : losses) {
      for (const bool is_short : {false, true}) {
        const Tensor ids = random_targets(rows, 10000), x = randn({rows, 48}),
                     weight = randn({10000, 48}).requires_grad_();
        const auto backward = [&] {
          const AutocastGuard guard(at::kCUDA, at::kBFloat16, AutocastGuard::Cache::kOff, is_short);
          (loss(x, weight, ids) * 0.5).backward();
        };
        backward();
        const Tensor once = weight.grad().clone();
        const double largest = once.abs().max().item<double>();
        const auto expect_sum = [&](double times) {
          EXPECT_TRUE(testing::close(weight.grad(), once * times, 2e-6 * largest))
              << rows << " rows, " << is_short << ", " << times << " times";
        };
        const void* const place = weight.grad().data_ptr();
        backward();
        EXPECT_EQ(weight.grad().data_ptr(), place);
        expect_sum(2);
        // Who holds the gradient goes on seeing it.
        const Tensor held = weight.grad();
        backward();
        EXPECT_TRUE(held.is_same(weight.grad()));
        expect_sum(3);
        // A hook sees the new part alone.
        Tensor seen;
        weight.register_hook([&](const Tensor& gradient) { seen = gradient; });
        backward();
        EXPECT_TRUE(testing::close(seen, once, 2e-6 * largest));
        expect_sum(4);
      }
    }
  }
}

// Every third position, and the first `whole`.
Tensor some_ignored(Tensor targets, int64_t whole) {
  const Tensor positions = at::arange(targets.numel(), targets.options()).view(targets.sizes());
  return targets.masked_fill((positions < whole) | (positions % 3 == 1), kIgnoredTarget);
}

TEST_F(OpsGpu, LossesLeaveIgnoredTargetsOut) {
  for (const int64_t classes : {7, 1000, 10000, 50257, 65544}) {
    const Tensor targets = some_ignored(random_targets(70, classes), 5);
    expect_agreement([&](const auto& x) { return cross_entropy(x[0], targets); },
                     [&](const auto& x) { return cross_entropy_reference(x[0], targets); },
                     {randn({70, classes}) * 5}, str("70 rows of ", classes));
    const Tensor logits = randn({70, classes});
    logits.narrow(0, 0, 5).fill_(NAN);  // nobody looks at them
    logits.requires_grad_();
    const Tensor loss = cross_entropy(logits, targets);
    loss.backward();
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << classes;
    EXPECT_TRUE(logits.grad().isfinite().all().item<bool>()) << classes;
    EXPECT_EQ(logits.grad().narrow(0, 0, 5).count_nonzero().item<int64_t>(), 0) << classes;
    const Tensor none = at::full_like(targets, kIgnoredTarget);
    EXPECT_TRUE(std::isnan(cross_entropy(logits, none).item<double>())) << classes;
  }
  // A chunk of ignored ones, and rows that are padded.
  for (const auto& [rows, classes] : {std::pair(9001, 10000), {600, 6442}, {70, 257}}) {
    const Tensor targets = some_ignored(random_targets(rows, classes), rows / 2);
    expect_agreement(fused_loss(targets), unfused_loss(targets),
                     {randn({rows, 48}), randn({classes, 48})}, str(rows, " rows of ", classes));
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

TEST_F(OpsGpu, LinearCrossEntropyUnderAutocast) {
  const Tensor targets = random_targets(300, 1000);
  const Tensor x = randn({3, 100, 64}), weight = randn({1000, 64}) / 8;
  const auto with_autocast = [&](const Op& op) {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    auto results = run(op, {x, weight}, at::kFloat, at::kFloat);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    return results;
  };
  const Tensor rows = targets.view({3, 100});
  const auto got = with_autocast(fused_loss(rows)), naive = with_autocast(unfused_loss(rows)),
             oracle = run(unfused_loss(rows), {x, weight}, at::kFloat, at::kDouble);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kFloat);
    const double largest = oracle[i].abs().max().item<double>();
    EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i], 8e-3 * largest)) << i;
  }
}

TEST_F(OpsGpu, LinearCrossEntropyMakesNoGradientThatNobodyWants) {
  const Tensor targets = random_targets(10, 30), x = randn({10, 8}), weight = randn({30, 8});
  Tensor frozen = weight.clone(), wanted = x.clone().requires_grad_();
  linear_cross_entropy(wanted, frozen, targets).backward();
  EXPECT_TRUE(wanted.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::close(linear_cross_entropy(x, weight, targets),
                             cross_entropy_reference(at::linear(x, weight), targets), 1e-5));
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
    expect_agreement([&](const auto& x) { return flashstep::embedding(x[0], ids); },
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
