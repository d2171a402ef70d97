// The CUDA kernels as other GPUs cut their work, in TF32, and with numbers that are none.
#include "flashstep/attention/kernels_gpu_test.h"

#include <bit>

#include <ATen/autocast_mode.h>
#include <torch/cuda.h>

#include "flashstep/attention/attention_test.h"
#include "flashstep/error.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::cuda;
using attention_testing::expect_results;
using attention_testing::Inputs;
using attention_testing::kGpuDtypes;
using attention_testing::masks;
using attention_testing::random_inputs;
using attention_testing::Results;
using attention_testing::run_as;
using attention_testing::unit_of;
using testing::kGpu;

constexpr int64_t kPaddedDims[] = {16, 32, 64, 96, 128, 192, 256};
constexpr double kTf32Unit = 4e-3;  // two roundings to 2^-11 in each of the products in a row

class AttentionKernelsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(21);
  }
  void TearDown() override { at::globalContext().setAllowTF32CuBLAS(false); }
};

TEST_F(AttentionKernelsGpu, TilesForLessSharedMemoryAreRight) {
  constexpr int kKiB = 1024;
  for (const attention_cuda::Device& device :
       {attention_cuda::Device{132, 99 * kKiB, 100 * kKiB},
        attention_cuda::Device{108, 163 * kKiB, 164 * kKiB},
        attention_cuda::Device{132, 227 * kKiB, 228 * kKiB}}) {
    for (const int64_t d : kPaddedDims) {
      for (const auto dtype : kGpuDtypes) {
        const Inputs x = random_inputs({{2, 4}, 2, 147, 203, d}, dtype, kGpu);
        for (AttentionOptions mask : masks()) {
          const auto reference = attention_testing::reference_of(x, mask);
          for (const bool deterministic : {true, false}) {
            mask.deterministic = deterministic;
            expect_results(run_as(device, x, mask), reference, unit_of(dtype, d),
                           str("shared memory ", device.shared_bytes_per_block, ", D ", d,
                               deterministic ? " deterministic" : " fastest"));
          }
        }
        if (HasFailure()) return;  // the first shape says enough
      }
    }
  }
}

TEST_F(AttentionKernelsGpu, TurnedGradientsGoBack) {
  for (const int shared : {99 * 1024, 227 * 1024}) {
    const attention_cuda::Device device{108, shared, shared + 1024};
    for (const int64_t d : {8, 40, 64, 128, 200}) {
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        const Inputs x = random_inputs({{2, 4}, 2, 147, 203, d}, dtype, kGpu);
        const Tensor angles = attention_testing::random_angles(203, d);
        for (AttentionOptions mask : masks()) {
          const auto reference =
              attention_testing::turned_back(attention_testing::reference_of(x, mask), angles);
          for (const bool deterministic : {true, false}) {
            mask.deterministic = deterministic;
            expect_results(run_as(device, x, mask, attention_cuda::plan_forward,
                                  attention_cuda::plan_backward, {}, angles),
                           reference, unit_of(dtype, d),
                           str("shared memory ", shared, ", D ", d,
                               deterministic ? " deterministic" : " fastest"));
          }
        }
        if (HasFailure()) return;  // the first shape says enough
      }
    }
  }
}

TEST_F(AttentionKernelsGpu, Tf32AtEveryHeadDim) {
  for (const int64_t d : kPaddedDims) {
    const Inputs x = random_inputs({{2, 3}, 0, 147, 203, d}, at::kFloat, kGpu);
    for (const bool deterministic : {true, false}) {
      const AttentionOptions options = cuda(true, deterministic);
      const auto results = [&](bool allowed) {
        at::globalContext().setAllowTF32CuBLAS(allowed);
        const Results got = attention_testing::run(x, options, "cuda", at::kFloat);
        at::globalContext().setAllowTF32CuBLAS(false);
        return got;
      };
      const Results full = results(false), tf32 = results(true);
      const auto reference = attention_testing::reference_of(x, options);
      expect_results(tf32, reference, kTf32Unit, str("TF32, D ", d));
      expect_results(full, reference, unit_of(at::kFloat, d), str("float32, D ", d));
      // And the switch is not ignored: each result's error is 10 times that of float32 at least.
      const Results& oracle = reference.oracle;
      for (const auto part :
           {&Results::out, &Results::grad_q, &Results::grad_k, &Results::grad_v}) {
        const auto error = [&](const Results& r) {
          return (r.*part - oracle.*part).abs().mean().item<double>();
        };
        EXPECT_GT(error(tf32), 10 * error(full)) << "D " << d;
      }
    }
  }
}

TEST_F(AttentionKernelsGpu, NanInOneKeyReachesEveryQuery) {  // of split keys as of whole ones
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t m : {197, 4099}) {
      Inputs x = random_inputs({{1}, 0, 7, m, 64}, dtype, kGpu);
      x.k.index_put_({0, m / 3, 5}, NAN);
      const auto [out, logsumexp] = attention_with_logsumexp(x.q, x.k, x.v, cuda(false));
      EXPECT_TRUE(at::isnan(out).all().item<bool>()) << dtype << " " << m;
      EXPECT_TRUE(at::isnan(logsumexp).all().item<bool>()) << dtype << " " << m;
    }
  }
}

// 0x7fffffff, which the GPU's own arithmetic gives, overflows where bits are rounded as integers.
TEST_F(AttentionKernelsGpu, EveryNanStaysOne) {
  for (const bool tf32 : {false, true}) {
    at::globalContext().setAllowTF32CuBLAS(tf32);
    for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
      for (const bool deterministic : {true, false}) {
        for (const auto part : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::grad_out}) {
          Inputs x = random_inputs({{1}, 0, 33, 40, 64}, at::kFloat, kGpu);
          (x.*part).view(at::kInt).index_put_({0, 20, 9}, std::bit_cast<int32_t>(bits));
          const Results got =
              attention_testing::run(x, cuda(false, deterministic), "cuda", at::kFloat);
          const auto nan = [](const Tensor& t) { return at::isnan(t).any().item<bool>(); };
          const bool forward = part != &Inputs::grad_out;
          EXPECT_EQ(nan(got.out), forward) << bits;
          EXPECT_TRUE(nan(got.grad_q)) << bits;
          EXPECT_TRUE(nan(got.grad_k)) << bits;
          EXPECT_EQ(nan(got.grad_v), part != &Inputs::v) << bits;
        }
      }
    }
  }
}

TEST_F(AttentionKernelsGpu, InfinitiesGiveNoFiniteNumber) {
  for (const auto dtype : kGpuDtypes) {
    Inputs x = random_inputs({{1, 2}, 0, 40, 40, 32}, dtype, kGpu);
    x.q.index_put_({0, 1, 20, 3}, INFINITY);  // scores of both infinite signs
    const Tensor out = attention(x.q, x.k, x.v, cuda(true));
    EXPECT_FALSE(at::isfinite(out.index({0, 1, 20})).any().item<bool>()) << dtype;
    EXPECT_TRUE(at::isfinite(out.index({0, 0})).all().item<bool>()) << dtype;
    EXPECT_TRUE(at::isfinite(out.index({0, 1}).narrow(0, 0, 20)).all().item<bool>()) << dtype;
    EXPECT_TRUE(at::isfinite(out.index({0, 1}).narrow(0, 21, 19)).all().item<bool>()) << dtype;
  }
}

// Scores that are all -infinity have no softmax, which is not the same as no scores; of split keys
// (the long ones) as of whole ones.
TEST_F(AttentionKernelsGpu, ARowOfInfiniteScoresIsNan) {
  constexpr int64_t kQueries = 30, kPoor = 20, kBlind = 3;  // the first see no key where causal
  for (const auto dtype : kGpuDtypes) {
    for (const bool causal : {true, false}) {
      const int64_t m = causal ? kQueries - kBlind : 4099;
      Inputs x = random_inputs({{1}, 0, kQueries, m, 32}, dtype, kGpu);
      x.k.abs_();
      x.q.select(1, kPoor).fill_(-INFINITY);
      AttentionOptions options = cuda(causal, true);
      options.align_last = causal;
      const Results got = attention_testing::run(x, options, "cuda", dtype);
      for (const auto part : {&Results::out, &Results::logsumexp, &Results::grad_q}) {
        EXPECT_TRUE(at::isnan((got.*part).select(1, kPoor)).all().item<bool>())
            << dtype << " " << m;
        EXPECT_FALSE(at::isnan((got.*part).narrow(1, 0, kPoor)).any().item<bool>()) << dtype;
      }
      EXPECT_TRUE(at::isnan(got.grad_v.select(1, 0)).all().item<bool>()) << dtype << " " << m;
      if (!causal) continue;
      EXPECT_EQ(got.out.narrow(1, 0, kBlind).count_nonzero().item<int64_t>(), 0) << dtype;
      EXPECT_TRUE(at::isinf(got.logsumexp.narrow(1, 0, kBlind)).all().item<bool>()) << dtype;
    }
  }
}

TEST_F(AttentionKernelsGpu, NothingComesFromQueriesThatSeeNothing) {
  for (const auto dtype : kGpuDtypes) {
    const Inputs x = random_inputs({{1, 2}, 0, 170, 40, 64}, dtype, kGpu);  // 130 rows see nothing
    Inputs poisoned = x;
    poisoned.grad_logsumexp = x.grad_logsumexp.clone();
    poisoned.grad_logsumexp.narrow(-1, 0, 130).fill_(NAN);
    AttentionOptions options = cuda(true, true);
    options.align_last = true;
    const Results clean = attention_testing::run(x, options, "cuda", dtype, true);
    const Results got = attention_testing::run(poisoned, options, "cuda", dtype, true);
    EXPECT_TRUE(testing::same_bits(got.grad_q, clean.grad_q)) << dtype;
    EXPECT_TRUE(testing::same_bits(got.grad_k, clean.grad_k)) << dtype;
    EXPECT_TRUE(testing::same_bits(got.grad_v, clean.grad_v)) << dtype;
    options.deterministic = false;
    const Results fastest = attention_testing::run(poisoned, options, "cuda", dtype, true);
    EXPECT_TRUE(at::isfinite(fastest.grad_q).all().item<bool>()) << dtype;
    EXPECT_TRUE(at::isfinite(fastest.grad_k).all().item<bool>()) << dtype;
  }
}

TEST_F(AttentionKernelsGpu, ExpandedAndOverlappingRows) {
  for (const auto dtype : kGpuDtypes) {
    Inputs x = random_inputs({{2, 3}, 0, 70, 90, 64}, dtype, kGpu);
    x.q = x.q.narrow(1, 0, 1).expand({2, 3, 70, 64});  // stride 0 from head to head
    x.k = x.k.narrow(2, 0, 1).expand({2, 3, 90, 64});  // and from row to row
    attention_testing::expect_right(x, cuda(true), "cuda", "expanded");
    const auto series = torch::randn({2, 3, 200}).to(kGpu, dtype);
    x.q = series.unfold(2, 64, 1).narrow(2, 0, 70);
    x.v = series.unfold(2, 64, 1).narrow(2, 0, 90);
    attention_testing::expect_right(x, cuda(true), "cuda", "overlapping");
  }
}

TEST_F(AttentionKernelsGpu, AutocastRoundsToItsDtype) {
  const auto q = torch::randn({1, 2, 40, 64}, kGpu).requires_grad_();
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto out = attention(q, q, q.detach().to(at::kBFloat16), cuda(true));
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  const auto rounded = q.detach().to(at::kBFloat16);
  EXPECT_TRUE(testing::same_bits(out.detach(), attention(rounded, rounded, rounded, cuda(true))));
  out.sum().backward();
  EXPECT_EQ(q.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::isfinite(q.grad()).all().item<bool>());
}

TEST_F(AttentionKernelsGpu, SdpaIsRefusedWhereBitsMustRepeat) {
  const auto q = torch::randn({1, 2, 40, 64}, kGpu).to(at::kBFloat16).requires_grad_();
  AttentionOptions options;
  options.implementation = "sdpa";
  options.deterministic = true;
  EXPECT_THROW(attention(q, q, q, options), UserError);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_NO_THROW(attention(q, q, q, options));
  }
  options.deterministic = false;
  EXPECT_NO_THROW(attention(q, q, q, options));
  // Nor does auto take it, not even for a head dim that the kernels do not take.
  const auto odd = torch::randn({1, 2, 40, 20}, kGpu).to(at::kBFloat16).requires_grad_();
  options.implementation = "auto";
  EXPECT_EQ(attention_auto(odd, odd, odd, options), "sdpa");
  options.deterministic = true;
  EXPECT_EQ(attention_auto(odd, odd, odd, options), "naive");
}

TEST_F(AttentionKernelsGpu, AutoFollowsTheContext) {
  const auto odd = torch::zeros({1, 2, 40, 20}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  auto& context = at::globalContext();
  EXPECT_EQ(attention_auto(odd, odd, odd), "sdpa");
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  EXPECT_EQ(attention_auto(odd, odd, odd), "naive");
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
}

}  // namespace
}  // namespace flashstep
