// Hopper's kernels by warpgroups, whichever form a plan would take.
#include <algorithm>
#include <string>
#include <vector>

#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "flashstep/attention/kernels_gpu_test.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_cuda::BackwardForm;
using attention_testing::cuda;
using attention_testing::expect_results;
using attention_testing::Inputs;
using attention_testing::masks;
using attention_testing::random_inputs;
using attention_testing::Results;
using attention_testing::run_as;
using attention_testing::unit_of;
using testing::kGpu;

constexpr attention_cuda::Device kHopper = {132, 227 * 1024, 228 * 1024, true};
constexpr Tensor Results::*kGradients[] = {&Results::grad_q, &Results::grad_k, &Results::grad_v};

class WarpgroupsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    if (at::cuda::getCurrentDeviceProperties()->major != 9) GTEST_SKIP() << "not a Hopper";
    torch::manual_seed(23);
  }
};

std::vector<BackwardForm> forms_of(int64_t d) {
  const bool has_one_pass = d <= 64 || d > 96;
  if (!has_one_pass) return {BackwardForm::kWarps, BackwardForm::kWarpgroups};
  return {BackwardForm::kWarps, BackwardForm::kWarpgroups, BackwardForm::kWarpgroupsOnePass};
}

std::string name_of(BackwardForm form) {
  return form == BackwardForm::kWarps        ? "warps"
         : form == BackwardForm::kWarpgroups ? "two passes"
                                             : "one pass";
}

// A section of few heads has many blocks of each that wait.
Results run_form(BackwardForm form, const Inputs& x, const AttentionOptions& options,
                 std::optional<int64_t> diagonal = {}, int64_t section = 8,
                 const Tensor& angles = {}) {
  const auto plan = [&](const auto& problem, const auto& device) {
    auto plan = attention_cuda::plan_of(problem, device, form);
    if (!plan.warpgroups) return plan;
    plan.keys.section_heads = std::min(section, plan.keys.heads);
    if (!plan.one_pass) plan.queries.section_heads = std::min(section, plan.queries.heads);
    return plan;
  };
  return run_as(kHopper, x, options, attention_cuda::plan_forward, plan, diagonal, angles);
}

// Forward in tiles of warpgroups on a GPU of so many multiprocessors.
Results run_tiles(const Inputs& x, const AttentionOptions& options, int blocks, int splits,
                  bool is_narrow) {
  const auto plan = [&](const auto& problem, const auto& device) {
    using attention_cuda::TileShape;
    const auto shape = is_narrow ? TileShape::kNarrowWarpgroups : TileShape::kWarpgroups;
    return attention_cuda::plan_of(problem, device, shape, splits);
  };
  attention_cuda::Device device = kHopper;
  device.sm_count = blocks;
  return run_as(device, x, options, plan);
}

// Few blocks take many tiles in turns: pairs, those of an odd head, and tiles without keys.
TEST_F(WarpgroupsGpu, ForwardIsRight) {
  for (const int64_t d : {40, 64, 80, 96, 120, 128}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto& [heads, n, m] :
           {std::tuple(4, 1, 1), std::tuple(4, 147, 203), std::tuple(4, 643, 3333),
            std::tuple(4, 643, 130), std::tuple(3, 643, 643)}) {
        const Inputs x = random_inputs({{2, heads}, heads == 4 ? 2 : 0, n, m, d}, dtype, kGpu);
        for (const AttentionOptions& mask : masks()) {
          const auto reference = attention_testing::reference_of(x, mask);
          for (const auto& [blocks, splits, is_narrow] :
               {std::tuple(132, 1, false), std::tuple(3, 1, false), std::tuple(5, 3, false),
                std::tuple(132, 3, false), std::tuple(132, 1, true), std::tuple(5, 3, true)}) {
            if (is_narrow && d > 64) continue;
            expect_results(run_tiles(x, mask, blocks, splits, is_narrow), reference,
                           unit_of(dtype, d),
                           str("D ", d, ", ", heads, " heads, ", n, " x ", m, ", ", blocks,
                               " blocks, ", splits, " splits", is_narrow ? ", narrow" : ""));
          }
        }
        if (HasFailure()) return;  // the first shape says enough
      }
    }
  }
}

// Signs are turned and zeros made in the tile of queries, of each tile anew.
TEST_F(WarpgroupsGpu, ForwardOfAnyScale) {
  for (const int64_t d : {64, 128}) {
    const Inputs x = random_inputs({{1, 3}, 0, 643, 300, d}, at::kBFloat16, kGpu);
    for (AttentionOptions options : masks()) {
      for (const double scale : {-0.3, 0.0}) {
        options.scale = scale;
        expect_results(run_tiles(x, options, /*blocks=*/3, /*splits=*/1, /*is_narrow=*/false),
                       attention_testing::reference_of(x, options), unit_of(at::kBFloat16, d),
                       str("D ", d, ", scale ", scale));
      }
    }
  }
}

TEST_F(WarpgroupsGpu, TurnedGradientsGoBack) {
  for (const int64_t d : {40, 64, 80, 96, 120, 128}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto& [n, m] : {std::pair(1, 1), std::pair(147, 203), std::pair(643, 1029)}) {
        const Inputs x = random_inputs({{2, 4}, 2, n, m, d}, dtype, kGpu);
        const Tensor angles = attention_testing::random_angles(m, d);
        for (AttentionOptions mask : masks()) {
          mask.deterministic = true;
          const auto reference =
              attention_testing::turned_back(attention_testing::reference_of(x, mask), angles);
          for (const BackwardForm form : forms_of(d)) {
            expect_results(run_form(form, x, mask, {}, 8, angles), reference, unit_of(dtype, d),
                           str("D ", d, ", ", n, " x ", m, ", ", name_of(form)));
          }
        }
        if (HasFailure()) return;  // the first shape says enough
      }
    }
  }
}

TEST_F(WarpgroupsGpu, BackwardIsRightAndRepeats) {
  for (const int64_t d : {40, 64, 80, 96, 120, 128}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto& [n, m] :
           {std::pair(1, 1), std::pair(147, 203), std::pair(1029, 130), std::pair(643, 3333)}) {
        const Inputs x = random_inputs({{2, 4}, 2, n, m, d}, dtype, kGpu);
        for (AttentionOptions mask : masks()) {
          const auto reference = attention_testing::reference_of(x, mask);
          for (const BackwardForm form : forms_of(d)) {
            if (form == BackwardForm::kWarps) continue;
            for (const auto& [deterministic, section] :
                 {std::pair(true, 8), std::pair(true, 1), std::pair(true, 3), std::pair(false, 8),
                  std::pair(false, 3)}) {
              mask.deterministic = deterministic;
              const Results got = run_form(form, x, mask, {}, section);
              const std::string what =
                  str("D ", d, ", ", n, " x ", m, ", ", name_of(form),
                      deterministic ? ", repeats" : ", any order", ", section ", section);
              expect_results(got, reference, unit_of(dtype, d), what);
              if (!deterministic) continue;
              const Results again = run_form(form, x, mask, {}, section);
              for (const auto part : kGradients)
                EXPECT_TRUE(testing::same_bits(got.*part, again.*part)) << what;
            }
          }
        }
        if (HasFailure()) return;  // the first shape says enough
      }
    }
  }
}

TEST_F(WarpgroupsGpu, FormsAgreeOnAnyDiagonal) {
  for (const int64_t d : {64, 72, 128}) {
    const Inputs x = random_inputs({{1, 2}, 1, 300, 260, d}, at::kBFloat16, kGpu);
    for (const int64_t diagonal : {-299, -200, -65, -5, 1, 70, 259, 300}) {
      for (const auto& [deterministic, window] :
           {std::pair(true, 1000), std::pair(false, 1000), std::pair(true, 90),
            std::pair(false, 90), std::pair(true, 1)}) {
        AttentionOptions options = cuda(true, deterministic);
        options.window = window;
        const Results expected = run_form(BackwardForm::kWarps, x, options, diagonal);
        for (const BackwardForm form : forms_of(d)) {
          const Results got = run_form(form, x, options, diagonal);
          for (const auto part : kGradients) {
            const Tensor& right = expected.*part;
            const double most = right.abs().max().item<double>();
            EXPECT_LE((got.*part - right).abs().max().item<double>(), most / 128)
                << name_of(form) << ", D " << d << ", diagonal " << diagonal << ", window "
                << window;
          }
        }
      }
    }
  }
}

// A key beyond the last is a row of zeros, whose weight would be exp(-logsumexp).
TEST_F(WarpgroupsGpu, KeysBeyondTheLastHaveNoWeight) {
  for (const int64_t d : {64, 96, 128}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const double score = dtype == at::kHalf ? -20 : -110;  // of every pair, about
      Inputs x = random_inputs({{1, 2}, 0, 200, 130, d}, dtype, kGpu);
      const double size = std::sqrt(-score / std::sqrt(static_cast<double>(d)));
      x.q.mul_(0.01).add_(size);
      x.k.mul_(0.01).sub_(size);
      for (AttentionOptions mask : masks()) {
        const auto reference = attention_testing::reference_of(x, mask);
        for (const BackwardForm form : forms_of(d)) {
          for (const bool deterministic : {true, false}) {
            mask.deterministic = deterministic;
            expect_results(run_form(form, x, mask), reference, unit_of(dtype, d),
                           str(name_of(form), ", D ", d));
          }
        }
      }
    }
  }
}

TEST_F(WarpgroupsGpu, NanGoesWhereItsRowGoes) {
  for (const int64_t d : {64, 128}) {
    for (const BackwardForm form : forms_of(d)) {
      for (const bool deterministic : {true, false}) {
        Inputs x = random_inputs({{1, 2}, 0, 300, 200, d}, at::kBFloat16, kGpu);
        x.q.index_put_({0, 1, 140, 9}, NAN);
        const Results got = run_form(form, x, cuda(false, deterministic));
        const auto nans = [](const Tensor& t) { return at::isnan(t).sum().item<int64_t>(); };
        const std::string what = str(name_of(form), ", D ", d);
        EXPECT_EQ(nans(got.grad_q), d) << what;  // a row
        EXPECT_EQ(nans(got.grad_q.index({0, 1, 140})), d) << what;
        for (const auto part : {&Results::grad_k, &Results::grad_v}) {
          EXPECT_EQ(nans(got.*part), 200 * d) << what;  // a head
          EXPECT_EQ(nans((got.*part).select(1, 0)), 0) << what;
        }
      }
    }
  }
}

// Blocks that wait for others on a GPU that other kernels fill.
TEST_F(WarpgroupsGpu, OrderedSumsOfManyStreamsRepeat) {
  const Inputs x = random_inputs({{1, 8}, 0, 2048, 2048, 128}, at::kBFloat16, kGpu);
  for (const int64_t window : {2048, 500}) {
    AttentionOptions options = cuda(true, true);
    options.window = window;
    const auto run = [&] { return run_form(BackwardForm::kWarpgroupsOnePass, x, options); };
    const Results alone = run();
    at::cuda::getCurrentCUDAStream().synchronize();
    std::vector<Results> all;
    for (int i = 0; i < 30; ++i) {
      const at::cuda::CUDAStreamGuard guard(
          at::cuda::getStreamFromPool(/*isHighPriority=*/i % 3 == 0));
      all.push_back(run());
    }
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    for (const Results& one : all) {
      for (const auto part : kGradients) EXPECT_TRUE(testing::same_bits(one.*part, alone.*part));
    }
  }
}

// Parts of split keys of which a window reaches some.
TEST_F(WarpgroupsGpu, WindowsOverManyPartsAreRight) {
  for (const int64_t d : {64, 128}) {
    for (const auto& [n, window] : {std::pair(1, 5000), std::pair(300, 3000), std::pair(64, 700)}) {
      const Inputs x = random_inputs({{1, 2}, 0, n, 8192, d}, at::kBFloat16, kGpu);
      AttentionOptions options = cuda(true, true);
      options.align_last = true;
      options.window = window;
      const auto reference = attention_testing::reference_of(x, options);
      const std::string what = str("D ", d, ", ", n, " queries, window ", window);
      expect_results(run_as(kHopper, x, options), reference, unit_of(at::kBFloat16, d), what);
      for (const int splits : {4, 16})
        expect_results(run_tiles(x, options, 132, splits, false), reference,
                       unit_of(at::kBFloat16, d), str(what, ", ", splits, " parts"));
    }
  }
}

TEST_F(WarpgroupsGpu, AllFormsKeepDocumentsApart) {
  for (const int64_t d : {64, 96, 128}) {
    for (const auto& [n, length] :
         {std::pair(300, 50.0), std::pair(1000, 130.0), std::pair(640, 3.0)}) {
      const Inputs x = random_inputs({{2, 4}, 2, n, n, d}, at::kBFloat16, kGpu);
      for (AttentionOptions mask : attention_testing::masks_of_documents({2, n}, length, kGpu)) {
        const auto reference = attention_testing::reference_of(x, mask);
        for (const BackwardForm form : forms_of(d)) {
          for (const bool deterministic : {true, false}) {
            mask.deterministic = deterministic;
            const std::string what = str(name_of(form), ", D ", d, ", N ", n);
            const Results got = run_form(form, x, mask);
            expect_results(got, reference, unit_of(at::kBFloat16, d), what);
            if (!deterministic) continue;
            const Results again = run_form(form, x, mask);
            for (const auto part : kGradients)
              EXPECT_TRUE(testing::same_bits(got.*part, again.*part)) << what;
          }
        }
        for (const int splits : {1, 3, 8})
          expect_results(run_tiles(x, mask, 132, splits, false), reference,
                         unit_of(at::kBFloat16, d),
                         str("D ", d, ", N ", n, ", ", splits, " parts"));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(WarpgroupsGpu, APlanTakesOrderedSums) {
  const Inputs x = random_inputs({{1, 16}, 0, 2048, 2048, 128}, at::kBFloat16, kGpu);
  const auto plan = [](const auto& problem, const auto& device) {
    const auto plan = attention_cuda::plan_backward(problem, device);
    EXPECT_TRUE(plan.ordered) << attention_cuda::describe(plan);
    return plan;
  };
  run_as(kHopper, x, cuda(false, true), attention_cuda::plan_forward, plan);
  attention_testing::expect_right(x, cuda(false, true), "cuda", "ordered");
}

}  // namespace
}  // namespace flashstep
