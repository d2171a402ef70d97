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
