// attention() where numbers are extreme or the head dim is odd: scales that are not positive, NaN,
// infinite and large scores.
#include "flashstep/attention.h"
#include "flashstep/attention/attention_test.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::random_inputs;
using testing::refusal;

AttentionOptions options_of(const std::string& name, bool causal = false,
                            std::optional<double> scale = {}) {
  AttentionOptions options;
  options.implementation = name;
  options.causal = causal;
  options.scale = scale;
  return options;
}

// Of out, dq, dk and dv.
std::vector<Tensor> results(const attention_testing::Inputs& x, const AttentionOptions& options,
                            at::ScalarType dtype) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : {x.q, x.k, x.v}) leaves.push_back(t.detach().to(dtype).requires_grad_());
  const auto out = attention(leaves[0], leaves[1], leaves[2], options);
  auto all = torch::autograd::grad({out}, leaves, {x.grad_out.to(dtype)});
  all.insert(all.begin(), out.detach());
  return all;
}

double relative_error(const Tensor& got, const Tensor& oracle) {
  const double error = (got.to(at::kDouble) - oracle).abs().max().item<double>();
  return error / oracle.abs().max().item<double>();
}

const char* const kParts[] = {"out", "dq", "dk", "dv"};

TEST(AttentionExtremes, AnyScaleUnderACausalMask) {
  torch::manual_seed(1);
  for (const int64_t d : {20, 63, 64, 264}) {
    const auto x = random_inputs({{1, 2}, 0, 37, 37, d}, at::kFloat, at::kCPU);
    for (const double scale : {-0.3, 0.0, 1e-42, -1e-60}) {
      const auto oracle = results(x, options_of("naive", true, scale), at::kDouble);
      for (const std::string name : {"auto", "tiled", "sdpa"}) {
        const auto got = results(x, options_of(name, true, scale), at::kFloat);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(testing::close(got[i], oracle[i], 1e-4, 1e-5))
              << name << " D " << d << " scale " << scale << " " << kParts[i];
        }
      }
    }
  }
}

TEST(AttentionExtremes, AutoLosesNoNanWhateverTheHeadDim) {
  torch::manual_seed(2);
  const auto nan_rows = [](const Tensor& out) { return at::isnan(out).all(-1).flatten(); };
  const auto only_row_1 = at::arange(5) == 1;
  for (const int64_t d : {1, 20, 63, 64, 264}) {
    for (const int64_t m : {4, 40}) {
      const auto where = str("D ", d, " M ", m);
      auto x = random_inputs({{1, 1}, 0, 5, m, d}, at::kFloat, at::kCPU);
      x.q[0][0][1][0] = NAN;
      const auto of_nan = results(x, options_of("auto"), at::kFloat);
      EXPECT_TRUE(at::equal(nan_rows(of_nan[0]), only_row_1)) << where;
      EXPECT_TRUE(at::equal(nan_rows(of_nan[1]), only_row_1)) << where << " dq";
      x.q[0][0][1].fill_(-1e30);  // all scores overflow to -infinity
      x.k = (x.k.abs() + 1) * 1e10;
      const auto of_infinite = results(x, options_of("auto"), at::kFloat);
      EXPECT_TRUE(at::equal(nan_rows(of_infinite[0]), only_row_1)) << where << ", -infinity";
    }
  }
}

// Other than naive, kernels know a row's weights from its logsumexp in float32 alone. Its rounding,
// 2^-24 of a large score, is that of tiled too.
TEST(AttentionExtremes, LargeScoresGiveNoLargerErrors) {
  for (const double size : {1e2, 1e4, 1e6, 1e8, 1e9, 1e12, 1e20}) {
    torch::manual_seed(3);
    auto x = random_inputs({{1, 1}, 0, 64, 64, 64}, at::kFloat, at::kCPU);
    x.k = x.k * size;
    for (const bool causal : {false, true}) {
      const auto oracle = results(x, options_of("naive", causal), at::kDouble);
      const auto naive = results(x, options_of("naive", causal), at::kFloat);
      const auto tiled = results(x, options_of("tiled", causal), at::kFloat);
      const auto cpu = results(x, options_of("cpu", causal), at::kFloat);
      for (const size_t i : {0, 3}) {
        const double known =
            std::max(relative_error(naive[i], oracle[i]), relative_error(tiled[i], oracle[i]));
        EXPECT_LE(relative_error(cpu[i], oracle[i]), 2 * known + 1e-6)
            << kParts[i] << " of scores of " << size;
      }
    }
  }
}

TEST(AttentionExtremes, SecondDerivativesAreRefusedWhateverTheHeadDim) {
  for (const std::string name : {"auto", "sdpa", "tiled"}) {
    for (const int64_t d : {63, 64, 264}) {
      const auto q = torch::randn({1, 1, 5, d}).requires_grad_();
      const auto out = attention(q, q, q, options_of(name));
      for (const auto& loss : {out.pow(2).sum(), out.sum()}) {
        const auto gradient =
            torch::autograd::grad({loss}, {q}, {}, true, /*create_graph=*/true)[0];
        const auto said =
            refusal([&] { torch::autograd::grad({gradient.pow(2).sum()}, {q}, {}, true); });
        EXPECT_NE(said.find("second derivatives are available with implementation naive only"),
                  std::string::npos)
            << name << " D " << d << ": " << said;
      }
    }
  }
}

}  // namespace
}  // namespace flashstep
