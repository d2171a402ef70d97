#include "flashstep/attention/attention.h"

#include "flashstep/base/error.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

// The definition, one query at a time, in float64.
Tensor definition(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, bool align_last,
                  double scale) {
  const auto wide_q = q.to(at::kDouble), wide_k = k.to(at::kDouble), wide_v = v.to(at::kDouble);
  const int64_t n = q.size(-2), m = k.size(-2);
  auto out = at::zeros(wide_q.sizes(), at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t seen = causal ? std::clamp<int64_t>(i + 1 + (align_last ? m - n : 0), 0, m) : m;
    if (seen == 0) continue;
    const auto row = wide_q.narrow(-2, i, 1);
    const auto scores = at::matmul(row, wide_k.narrow(-2, 0, seen).transpose(-2, -1)) * scale;
    out.narrow(-2, i, 1).copy_(at::matmul(at::softmax(scores, -1), wide_v.narrow(-2, 0, seen)));
  }
  return out;
}

struct Case {
  std::vector<int64_t> leading;
  int64_t n, m, d;
};

const Case kCases[] = {
    {{}, 1, 1, 8},      {{2}, 1, 7, 16},    {{2, 3}, 17, 17, 32}, {{1, 2}, 64, 64, 64},
    {{2, 2}, 5, 31, 6}, {{2, 2}, 31, 5, 8}, {{1, 1}, 67, 67, 1},  {{2, 1, 3}, 33, 40, 24},
    {{0, 2}, 4, 4, 8},  {{2, 2}, 0, 4, 8},  {{2, 2}, 3, 0, 8},
};

std::vector<int64_t> shape(const Case& c, int64_t rows) {
  auto sizes = c.leading;
  sizes.push_back(rows);
  sizes.push_back(c.d);
  return sizes;
}

TEST(Attention, AgreesWithTheDefinition) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double unit = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 8e-3;
    for (const auto& c : kCases) {
      for (const int mask : {0, 1, 2}) {
        AttentionOptions options;
        options.causal = mask > 0;
        options.align_last = mask == 2;
        const auto q = torch::randn(shape(c, c.n)).to(dtype);
        const auto k = torch::randn(shape(c, c.m)).to(dtype);
        const auto v = torch::randn(shape(c, c.m)).to(dtype);
        const auto oracle = definition(q, k, v, options.causal, options.align_last,
                                       1 / std::sqrt(static_cast<double>(c.d)));
        options.implementation = "naive";
        const auto naive = attention(q, k, v, options);
        EXPECT_TRUE(testing::close(naive, oracle, 4 * unit, 2 * unit)) << dtype << " n " << c.n;
        for (const auto& name : attention_implementations()) {
          options.implementation = name;
          const auto got = attention(q, k, v, options);
          EXPECT_EQ(got.scalar_type(), dtype);
          EXPECT_TRUE(testing::within_twice_naive(got, naive, oracle, unit))
              << name << " " << dtype << " n " << c.n << " m " << c.m << " d " << c.d << " mask "
              << mask;
        }
      }
    }
  }
}

TEST(Attention, GradientsAgreeWithFiniteDifferences) {
  torch::manual_seed(2);
  for (const auto& name : {"naive", "auto"}) {
    for (const auto& [n, m, align_last] : {std::tuple(5, 5, false), std::tuple(3, 6, true),
                                           std::tuple(6, 3, true), std::tuple(6, 4, false)}) {
      AttentionOptions options;
      options.causal = true;
      options.align_last = align_last;
      options.implementation = name;
      std::vector<Tensor> inputs = {torch::randn({2, n, 4}, at::kDouble),
                                    torch::randn({2, m, 4}, at::kDouble),
                                    torch::randn({2, m, 4}, at::kDouble)};
      const auto weights = torch::randn({2, n, 4}, at::kDouble);
      for (auto& x : inputs) x.requires_grad_();
      (attention(inputs[0], inputs[1], inputs[2], options) * weights).sum().backward();
      for (int which = 0; which < 3; ++which) {
        const auto slope = testing::finite_difference(
            [&](const Tensor& x) {
              auto changed = inputs;
              changed[which] = x;
              return attention(changed[0], changed[1], changed[2], options);
            },
            inputs[which], weights);
        EXPECT_TRUE(testing::close(inputs[which].grad(), slope, 1e-8)) << name << " " << which;
      }
    }
  }
}

TEST(Attention, GradientsOfEveryImplementationAgreeWithTheNaiveOnes) {
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [n, m] : {std::pair(33, 33), std::pair(1, 9), std::pair(40, 33)}) {
      const auto q0 = torch::randn({2, 3, n, 16}).to(dtype),
                 k0 = torch::randn({2, 3, m, 16}).to(dtype),
                 v0 = torch::randn({2, 3, m, 16}).to(dtype), dout = torch::randn({2, 3, n, 16});
      const auto gradients = [&](const std::string& name, at::ScalarType type) {
        AttentionOptions options;
        options.causal = true;
        options.implementation = name;
        std::vector<Tensor> x;
        for (const auto& t : {q0, k0, v0}) x.push_back(t.to(type).clone().requires_grad_());
        attention(x[0], x[1], x[2], options).backward(dout.to(dtype).to(type));
        return std::vector<Tensor>{x[0].grad(), x[1].grad(), x[2].grad()};
      };
      const auto oracle = gradients("naive", at::kDouble), naive = gradients("naive", dtype);
      for (const auto& name : attention_implementations()) {
        const auto got = gradients(name, dtype);
        for (int i = 0; i < 3; ++i) {
          EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i],
                                                  dtype == at::kFloat ? 2e-6 : 2e-2))
              << name << " " << dtype << " " << i;
        }
      }
    }
  }
}

TEST(Attention, StridedInputsGiveWhatContiguousOnesGive) {
  torch::manual_seed(4);
  const auto packed =
      torch::randn({2, 19, 3, 4, 16});  // (B, N, 3, H, D), as one projection makes it
  const auto q = packed.select(2, 0).transpose(1, 2), k = packed.select(2, 1).transpose(1, 2),
             v = packed.select(2, 2).transpose(1, 2);
  AttentionOptions options;
  options.causal = true;
  for (const auto& name : attention_implementations()) {
    options.implementation = name;
    EXPECT_TRUE(testing::close(attention(q, k, v, options),
                               attention(q.contiguous(), k.contiguous(), v.contiguous(), options),
                               1e-6))
        << name;
  }
}

TEST(Attention, QueriesThatSeeNothingGiveZerosAndNoNan) {
  AttentionOptions options;
  options.causal = options.align_last = true;
  for (const auto& name : attention_implementations()) {
    options.implementation = name;
    const auto q = torch::randn({1, 1, 6, 8}).requires_grad_();
    const auto k = torch::randn({1, 1, 2, 8}).requires_grad_(), v = torch::randn({1, 1, 2, 8});
    const auto out = attention(q, k, v, options);
    EXPECT_TRUE(testing::close(out.narrow(2, 0, 4), torch::zeros({1, 1, 4, 8}), 0)) << name;
    out.sum().backward();
    EXPECT_TRUE(testing::close(q.grad().narrow(2, 0, 4), torch::zeros({1, 1, 4, 8}), 0)) << name;
    EXPECT_TRUE(at::isfinite(k.grad()).all().item<bool>()) << name;
  }
}

TEST(Attention, UsesTheScaleItIsGiven) {
  torch::manual_seed(5);
  const auto q = torch::randn({1, 2, 9, 8}), k = torch::randn({1, 2, 9, 8}),
             v = torch::randn({1, 2, 9, 8});
  AttentionOptions options;
  options.scale = 0.25;
  for (const auto& name : attention_implementations()) {
    options.implementation = name;
    EXPECT_TRUE(
        testing::close(attention(q, k, v, options), definition(q, k, v, false, false, 0.25), 1e-6))
        << name;
  }
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

template <typename Field, typename Value>
AttentionOptions with(Field AttentionOptions::*field, Value value) {
  AttentionOptions options;
  options.*field = value;
  return options;
}

TEST(Attention, NamesWhatIsWrong) {
  const auto q = torch::zeros({2, 3, 5, 8});
  const auto says = [&](const std::string& text, const std::function<void()>& call) {
    EXPECT_NE(refusal(call).find(text), std::string::npos) << refusal(call);
  };
  says("expected q of shape (B..., N, D)", [&] { attention(torch::zeros(3), q, q); });
  says("expected k of rank 4", [&] { attention(q, torch::zeros({5, 8}), q); });
  says("expected k of shape (B..., M, 8)", [&] { attention(q, torch::zeros({2, 3, 5, 9}), q); });
  says("expected v of shape", [&] { attention(q, q, torch::zeros({2, 3, 4, 8})); });
  says("expected v of dtype Float", [&] { attention(q, q, q.to(at::kDouble)); });
  says("expected q of a floating dtype", [&] { attention(q.to(at::kLong), q, q); });
  says("expected implementation to be one of auto, naive, sdpa, got \"flash\"",
       [&] { attention(q, q, q, with(&AttentionOptions::implementation, "flash")); });
  says("finite scale", [&] { attention(q, q, q, with(&AttentionOptions::scale, NAN)); });
}

}  // namespace
}  // namespace flashstep
