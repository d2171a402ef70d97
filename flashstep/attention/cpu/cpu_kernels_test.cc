// Results against the formula in float64: at most twice the error of the formula in the tested
// type.
#include <bit>
#include <limits>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "flashstep/attention/cpu/kernels.h"
#include "flashstep/attention/cpu/test_problem.h"

namespace flashstep::attention_cpu {
namespace {

using testing::Array;
using testing::Case;
using testing::Element;

constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16, Element::kFloat16};
const char* name_of(Element type) {
  return type == Element::kFloat32    ? "float32"
         : type == Element::kBfloat16 ? "bfloat16"
                                      : "float16";
}

// One worker: the order of the tasks.
Parallel in_order() {
  return {1, [](int64_t tasks, const std::function<void(int64_t, int)>& body) {
            for (int64_t task = 0; task < tasks; ++task) body(task, 0);
          }};
}

// No element further from the oracle than twice the naive formula's worst error and `epsilon`.
::testing::AssertionResult close(const Array& actual, const std::vector<double>& oracle,
                                 const std::vector<double>& naive, double relative_epsilon,
                                 double epsilon = 0) {
  double naive_error = 0, largest = 0;
  for (size_t i = 0; i < oracle.size(); ++i) {
    naive_error = std::max(naive_error, std::abs(naive[i] - oracle[i]));
    largest = std::max(largest, std::abs(oracle[i]));
  }
  const double allowed = 2 * naive_error + relative_epsilon * largest + epsilon;
  auto result = ::testing::AssertionSuccess();
  double worst = -1;
  size_t i = 0;
  actual.for_each([&](int64_t b, int64_t h, int64_t r, int d) {
    const double value = actual.get(b, h, r, d), expected = oracle[i++];
    const double error = std::abs(value - expected);
    if (error <= allowed || error <= worst) return;
    if (std::isfinite(error)) worst = error;
    result = ::testing::AssertionFailure()
             << "at (" << b << ", " << h << ", " << r << ", " << d << "): got " << value
             << ", expected " << expected << ", allowed difference " << allowed;
  });
  if (result && !actual.gaps_untouched()) {
    return ::testing::AssertionFailure() << "wrote between the rows";
  }
  return result;
}

void expect_right(const Case& c, Element type) {
  const testing::Inputs inputs(c, type);
  const auto results = testing::run(c, type, inputs, in_order());
  const double scale = testing::problem_of(c, type).scale;
  const auto oracle = testing::formula<double>(c, inputs, scale, [](double x) { return x; });
  const auto naive = testing::formula<float>(
      c, inputs, scale, [&](float x) { return static_cast<float>(testing::round_to(type, x)); });
  // Beyond the formula's roundings: the result's last one; in float32 weights come from the stored
  // logsumexp and an exponential of 2 units, and the factors 1/l and log2(e) round once each.
  const double epsilon = (type == Element::kFloat32 ? 8 : 1) * testing::unit_of(type);
  // Score gradients are differences of numbers of size sqrt(D) (a sum of D products), some four
  // times as large; they are multiplied with elements of up to four: what cancels leaves their
  // roundings.
  const double cancelled =
      8 * testing::unit_of(Element::kFloat32) * 16 * std::sqrt(c.dim) * std::abs(scale) +
      std::numeric_limits<float>::min();
  const std::string what = str(name_of(type), " ", testing::to_string(c));
  EXPECT_TRUE(close(results.out, oracle[0], naive[0], epsilon)) << "out " << what;
  EXPECT_TRUE(close(results.grad_q, oracle[1], naive[1], epsilon, cancelled)) << "grad_q " << what;
  EXPECT_TRUE(close(results.grad_k, oracle[2], naive[2], epsilon, cancelled)) << "grad_k " << what;
  EXPECT_TRUE(close(results.grad_v, oracle[3], naive[3], epsilon)) << "grad_v " << what;
  for (size_t i = 0; i < oracle[4].size(); ++i) {
    // Scores of some units of size round in float32 sums of D terms.
    const bool right = oracle[4][i] == results.logsumexp[i] ||
                       std::abs(oracle[4][i] - results.logsumexp[i]) <= 1e-5;
    ASSERT_TRUE(right) << "logsumexp " << i << " " << what << ": got " << results.logsumexp[i]
                       << ", expected " << oracle[4][i];
  }
}

// One, primes, and around blocks (12, 6), vectors (16, 8), panels (32, 16) and tiles (96, 128,
// 256).
const std::pair<int64_t, int64_t> kSizes[] = {
    {1, 1},   {1, 17},  {2, 300}, {11, 13},  {12, 16},   {13, 17},   {31, 33},
    {64, 64}, {97, 31}, {95, 96}, {129, 97}, {127, 255}, {130, 257}, {257, 129},
};

TEST(CpuAttention, AgreesWithTheFormulaAtEdgeSizes) {
  for (const auto type : kElements) {
    for (const auto& [n, m] : kSizes) {
      for (const bool strided : {false, true}) {
        expect_right({.n = n, .m = m, .dim = 40, .strided = strided}, type);
        expect_right({.n = n, .m = m, .dim = 64, .causal = true, .strided = strided}, type);
        expect_right({.n = n, .m = m, .dim = 16, .causal = true, .diagonal = m - n}, type);
      }
    }
  }
}

TEST(CpuAttention, TakesEveryHeadDim) {
  for (const auto type : kElements) {
    for (int dim = 1; dim <= 256; dim += dim < 70 ? 1 : 7) {
      const bool strided = dim % 2 == 1;
      expect_right(
          {.n = 29, .m = 37, .dim = dim, .causal = true, .diagonal = 5, .strided = strided}, type);
    }
  }
}

// Of one key, shorter and longer than tiles, at any place, past the last key and before the first.
TEST(CpuAttention, TakesAnyWindow) {
  for (const auto type : kElements) {
    for (const int64_t window : {1, 2, 15, 16, 17, 96, 130, 299, 300, 1000}) {
      for (const auto& [n, m] : {std::pair(300, 300), std::pair(40, 300), std::pair(300, 40)}) {
        for (const int64_t diagonal : {int64_t{0}, int64_t{m} - n, int64_t{-20}, int64_t{350}}) {
          expect_right({.n = n,
                        .m = m,
                        .dim = 16,
                        .causal = true,
                        .diagonal = diagonal,
                        .window = window,
                        .strided = window % 2 == 0,
                        .grad_logsumexp = window % 2 == 1},
                       type);
        }
      }
    }
  }
}

TEST(CpuAttention, SharesKeysAmongGroupsOfHeads) {
  for (const auto type : kElements) {
    expect_right({.n = 70, .m = 65, .dim = 32, .batches = 2, .heads = 6, .kv_heads = 2}, type);
    expect_right({.n = 50,
                  .m = 80,
                  .dim = 32,
                  .causal = true,
                  .diagonal = 30,
                  .batches = 2,
                  .heads = 4,
                  .kv_heads = 1,
                  .strided = true},
                 type);
    expect_right({.n = 150,
                  .m = 170,
                  .dim = 32,
                  .causal = true,
                  .diagonal = 20,
                  .window = 40,
                  .batches = 2,
                  .heads = 6,
                  .kv_heads = 2},
                 type);
  }
}

TEST(CpuAttention, TakesAnyDiagonalAndAnyScale) {
  for (const auto type : kElements) {
    for (const int64_t diagonal : {-1000, -40, -39, -7, -1, 1, 20, 49, 50, 1000}) {
      expect_right({.n = 40, .m = 50, .dim = 24, .causal = true, .diagonal = diagonal}, type);
    }
    for (const float scale : {-0.3f, 0.01f, 1e-30f, -1e-42f}) {
      expect_right({.n = 40, .m = 50, .dim = 24, .causal = true, .scale = scale}, type);
    }
  }
}

TEST(CpuAttention, TakesTheGradientOfTheLogsumexp) {
  for (const auto type : kElements) {
    expect_right(
        {.n = 60, .m = 45, .dim = 32, .causal = true, .diagonal = -10, .grad_logsumexp = true},
        type);
  }
}

TEST(CpuAttention, AgreesOnEveryInstructionSet) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t rest = all; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().DeInit();
    for (const auto type : kElements) {
      expect_right({.n = 37, .m = 70, .dim = 40, .causal = true, .diagonal = 20}, type);
      expect_right({.n = 70, .m = 37, .dim = 24, .strided = true}, type);
      expect_right({.n = 150, .m = 170, .dim = 24, .causal = true, .diagonal = 5, .window = 50},
                   type);
      for (const int dim : {1, 21, 63}) {
        expect_right({.n = 37, .m = 70, .dim = dim, .causal = true}, type);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

// A NaN that carries bits beside the quiet one, as computed ones may.
TEST(CpuAttention, KeepsEveryNanOnEveryInstructionSet) {
  const Case c = {.n = 5, .m = 40, .dim = 16};
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().DeInit();
    for (const uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7fffffffu, 0xffc000ffu}) {
      testing::Inputs inputs(c, Element::kFloat32);
      inputs.q.set(0, 0, 3, 2, std::bit_cast<float>(bits));
      const auto results = testing::run(c, Element::kFloat32, inputs, in_order());
      EXPECT_TRUE(std::isnan(results.out.get(0, 0, 3, 0))) << bits << " of target " << rest;
      EXPECT_TRUE(std::isnan(results.grad_q.get(0, 0, 3, 0))) << bits << " of target " << rest;
    }
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().DeInit();
}

TEST(CpuAttention, KeepsNanAndInfinityOutOfOtherRows) {
  for (const auto type : kElements) {
    const Case c = {.n = 40, .m = 40, .dim = 16, .causal = true};
    testing::Inputs inputs(c, type);
    inputs.q.set(0, 0, 7, 3, NAN);
    const auto results = testing::run(c, type, inputs, in_order());
    results.out.for_each([&](int64_t b, int64_t h, int64_t r, int d) {
      EXPECT_EQ(std::isnan(results.out.get(b, h, r, d)), r == 7) << name_of(type) << " row " << r;
    });
  }
}

}  // namespace
}  // namespace flashstep::attention_cpu
