// What attention() computes, with gradients: every implementation against the definition.
#include "flashstep/attention.h"

#include "flashstep/attention/attention_test.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::expect_right;
using attention_testing::random_inputs;
using attention_testing::Shape;

// Whether an implementation takes such inputs; those that do not must say so
// (Attention.NamesWhatIsWrong).
bool takes(const std::string& name, at::ScalarType dtype) {
  if (name == "cuda") return false;
  if (name == "cpu") return dtype != at::kDouble;
  return true;
}

// The definition, one query at a time, in float64.
Tensor definition(const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionOptions& options, double scale) {
  const auto wide_q = q.to(at::kDouble), wide_k = k.to(at::kDouble), wide_v = v.to(at::kDouble);
  const int64_t n = q.size(-2), m = k.size(-2);
  auto out = at::zeros(wide_q.sizes(), at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t behind = i + 1 + (options.align_last ? m - n : 0);
    const int64_t end = options.causal ? std::clamp<int64_t>(behind, 0, m) : m;
    const int64_t begin = options.window ? std::max<int64_t>(behind - *options.window, 0) : 0;
    if (end <= begin) continue;
    const auto row = wide_q.narrow(-2, i, 1);
    const auto keys = wide_k.narrow(-2, begin, end - begin);
    const auto scores = at::matmul(row, keys.transpose(-2, -1)) * scale;
    out.narrow(-2, i, 1).copy_(
        at::matmul(at::softmax(scores, -1), wide_v.narrow(-2, begin, end - begin)));
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
      for (const int mask : {0, 1, 2, 3, 4}) {
        AttentionOptions options;
        options.causal = mask > 0;
        options.align_last = mask == 2 || mask == 4;
        if (mask > 2) options.window = 3;
        const auto q = torch::randn(shape(c, c.n)).to(dtype);
        const auto k = torch::randn(shape(c, c.m)).to(dtype);
        const auto v = torch::randn(shape(c, c.m)).to(dtype);
        const auto oracle = definition(q, k, v, options, 1 / std::sqrt(static_cast<double>(c.d)));
        options.implementation = "naive";
        const auto naive = attention(q, k, v, options);
        EXPECT_TRUE(testing::close(naive, oracle, 4 * unit, 2 * unit)) << dtype << " n " << c.n;
        for (const auto& name : attention_implementations()) {
          if (!takes(name, dtype)) continue;
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
  for (const auto& name : {"naive", "auto", "tiled"}) {
    for (const auto& [n, m, align_last, window] :
         {std::tuple(5, 5, false, 9), std::tuple(3, 6, true, 9), std::tuple(6, 3, true, 9),
          std::tuple(6, 4, false, 9), std::tuple(9, 4, false, 2), std::tuple(4, 6, true, 1)}) {
      AttentionOptions options;
      options.causal = true;
      options.align_last = align_last;
      options.window = window;
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
        if (!takes(name, dtype)) continue;
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
    if (!takes(name, at::kFloat)) continue;
    options.implementation = name;
    EXPECT_TRUE(testing::close(attention(q, k, v, options),
                               attention(q.contiguous(), k.contiguous(), v.contiguous(), options),
                               1e-6))
        << name;
  }
}

// Of six queries and two keys four before the first key, or two whose window of three lies behind
// the last.
TEST(Attention, QueriesThatSeeNothingGiveZerosAndNoNan) {
  AttentionOptions last, windowed;
  last.causal = last.align_last = windowed.causal = true;
  windowed.window = 3;
  for (const auto& [mask, first, count] : {std::tuple(last, 0, 4), std::tuple(windowed, 4, 2)}) {
    for (const auto& name : attention_implementations()) {
      if (!takes(name, at::kFloat)) continue;
      AttentionOptions options = mask;
      options.implementation = name;
      const auto q = torch::randn({1, 1, 6, 8}).requires_grad_();
      const auto k = torch::randn({1, 1, 2, 8}).requires_grad_(), v = torch::randn({1, 1, 2, 8});
      const auto out = attention(q, k, v, options);
      const auto zeros = torch::zeros({1, 1, count, 8});
      EXPECT_TRUE(testing::close(out.narrow(2, first, count), zeros, 0)) << name;
      EXPECT_EQ(out.ne(0).any(-1).sum().item<int64_t>(), 6 - count) << name;
      out.sum().backward();
      EXPECT_TRUE(testing::close(q.grad().narrow(2, first, count), zeros, 0)) << name;
      EXPECT_TRUE(at::isfinite(k.grad()).all().item<bool>()) << name;
    }
  }
}

TEST(Attention, UsesTheScaleItIsGiven) {
  torch::manual_seed(5);
  const auto q = torch::randn({1, 2, 9, 8}), k = torch::randn({1, 2, 9, 8}),
             v = torch::randn({1, 2, 9, 8});
  AttentionOptions options;
  options.scale = 0.25;
  for (const auto& name : attention_implementations()) {
    if (!takes(name, at::kFloat)) continue;
    options.implementation = name;
    EXPECT_TRUE(
        testing::close(attention(q, k, v, options), definition(q, k, v, options, 0.25), 1e-6))
        << name;
  }
}

// Edges of the tiles (64 rows here and there), primes, grouped queries, one dimension more or less.
const Shape kShapes[] = {
    {{}, 0, 1, 1, 8},          {{3}, 0, 65, 63, 16},      {{2, 4}, 2, 67, 131, 64},
    {{1, 6}, 1, 33, 33, 24},   {{2, 1, 2}, 0, 5, 129, 8}, {{1, 1}, 0, 128, 128, 128},
    {{1, 2}, 0, 131, 64, 256}, {{2, 2}, 1, 1, 70, 80},
};

TEST(Attention, KernelsAreRightOnEveryMaskAndDtype) {
  torch::manual_seed(6);
  for (const std::string name : {"tiled", "cpu"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Shape& shape : kShapes) {
        const auto inputs = random_inputs(shape, dtype, at::kCPU);
        for (const auto& mask : attention_testing::masks()) {
          expect_right(inputs, mask, name, attention_testing::text(shape));
        }
      }
    }
  }
}

TEST(Attention, TheLogsumexpHasAGradient) {
  torch::manual_seed(7);
  const auto inputs = random_inputs({{2, 2}, 1, 37, 45, 16}, at::kFloat, at::kCPU);
  for (const std::string name : {"tiled", "cpu"}) {
    for (const auto& mask : attention_testing::masks()) {
      expect_right(inputs, mask, name, "gradient of both", /*with_grad_logsumexp=*/true);
    }
  }
}

TEST(Attention, PartsOfTheKeysMergeByTheirLogsumexp) {
  torch::manual_seed(8);
  const auto x = random_inputs({{2, 2}, 0, 9, 40, 16}, at::kFloat, at::kCPU);
  const auto part = [&](int64_t begin, int64_t size) {
    return attention_with_logsumexp(x.q, x.k.narrow(-2, begin, size), x.v.narrow(-2, begin, size));
  };
  const auto [a, la] = part(0, 13);
  const auto [b, lb] = part(13, 27);
  const auto whole = at::logaddexp(la, lb);
  const auto merged = a * (la - whole).exp().unsqueeze(-1) + b * (lb - whole).exp().unsqueeze(-1);
  EXPECT_TRUE(testing::close(merged, attention(x.q, x.k, x.v), 1e-6));
}

// A row that sees no key has no gradient, whatever is given for its logsumexp.
TEST(Attention, NothingComesFromQueriesThatSeeNothing) {
  torch::manual_seed(10);
  auto x = random_inputs({{1, 2}, 0, 70, 40, 8}, at::kFloat, at::kCPU);  // rows 0..29 see nothing
  AttentionOptions options;
  options.causal = options.align_last = true;
  for (const std::string name : {"naive", "tiled", "cpu"}) {
    const auto clean = run(x, options, name, at::kFloat, /*with_grad_logsumexp=*/true);
    auto poisoned = x;
    poisoned.grad_logsumexp = x.grad_logsumexp.clone();
    poisoned.grad_logsumexp.narrow(-1, 0, 30).fill_(NAN);
    const auto got = run(poisoned, options, name, at::kFloat, /*with_grad_logsumexp=*/true);
    EXPECT_TRUE(testing::same_bits(got.grad_q, clean.grad_q)) << name;
    EXPECT_TRUE(testing::same_bits(got.grad_k, clean.grad_k)) << name;
    EXPECT_TRUE(testing::same_bits(got.grad_v, clean.grad_v)) << name;
  }
}

// Scores that are all -infinity have no softmax; they are not the same as no scores.
TEST(Attention, ARowOfInfiniteScoresIsNan) {
  torch::manual_seed(13);
  constexpr int64_t kHidden = 3, kPoor = 40;  // queries: the first see nothing, this one the rest
  auto x = random_inputs({{1, 2}, 0, 70, 70 - kHidden, 16}, at::kFloat, at::kCPU);
  x.k.abs_();
  for (const double q :
       {-static_cast<double>(INFINITY), -1e30}) {  // with keys of 1e30 products overflow
    auto poor = x;
    poor.q = x.q.clone();
    poor.q.select(-2, kPoor).fill_(q);
    poor.k = std::isinf(q) ? x.k : x.k * 1e30;
    for (const std::string name : {"naive", "tiled", "cpu"}) {
      for (const bool causal : {true, false}) {
        AttentionOptions options;
        options.causal = options.align_last = causal;
        const auto got = run(poor, options, name, at::kFloat);
        const auto where = str(name, ", q ", q, causal ? ", causal" : "");
        EXPECT_TRUE(at::isnan(got.out.select(-2, kPoor)).all().item<bool>()) << where;
        EXPECT_FALSE(at::isfinite(got.logsumexp.select(-1, kPoor)).any().item<bool>()) << where;
        EXPECT_TRUE(at::isnan(got.grad_q.select(-2, kPoor)).all().item<bool>()) << where;
        EXPECT_TRUE(at::isnan(got.grad_v.select(-2, 0)).all().item<bool>()) << where;
        if (!causal) continue;
        EXPECT_TRUE(
            testing::close(got.out.narrow(-2, 0, kHidden), torch::zeros({1, 2, kHidden, 16}), 0))
            << where;
        EXPECT_TRUE(at::isinf(got.logsumexp.narrow(-1, 0, kHidden)).all().item<bool>()) << where;
        if (std::isinf(q)) {  // what does not see that row is untouched
          EXPECT_TRUE(at::isfinite(got.out.select(-2, kPoor - 1)).all().item<bool>()) << where;
        }
      }
    }
  }
}

TEST(Attention, NanInOneKeyReachesEveryQueryThatSeesIt) {
  auto x = random_inputs({{1}, 0, 7, 4099, 8}, at::kFloat, at::kCPU);
  x.k.index_put_({0, 4000, 3}, NAN);
  AttentionOptions options;
  for (const std::string name : {"tiled", "cpu"}) {
    options.implementation = name;
    const auto [out, logsumexp] = attention_with_logsumexp(x.q, x.k, x.v, options);
    EXPECT_TRUE(at::isnan(out).all().item<bool>()) << name;
    EXPECT_TRUE(at::isnan(logsumexp).all().item<bool>()) << name;
  }
}

// What the comparison is for: rows that see many keys have small outputs, of which a whole tile of
// keys is a small part.
TEST(AttentionTest, ADroppedTileOfKeysIsSeenInLateRows) {
  torch::manual_seed(12);
  constexpr int64_t kLength = 2048;
  auto x = random_inputs({{1}, 0, kLength, kLength, 64}, at::kBFloat16, at::kCPU);
  x.q = x.q / 4;  // no key has most of the weight
  const auto formula = [&](at::ScalarType dtype, bool drop) {
    auto hidden = torch::ones({kLength, kLength}, at::kBool).triu(1);
    if (drop) hidden.narrow(0, 1920, 128).narrow(1, 64, 64).fill_(true);
    const auto scores = at::matmul(x.q.to(dtype), x.k.to(dtype).transpose(1, 2)) / 8;
    return at::matmul(at::softmax(scores.masked_fill(hidden, -1e30), -1), x.v.to(dtype));
  };
  const auto oracle = formula(at::kDouble, false), naive = formula(at::kBFloat16, false);
  const auto broken = formula(at::kDouble, true).to(at::kBFloat16);
  const double unit = attention_testing::unit_of(at::kBFloat16, 64);
  EXPECT_TRUE(
      testing::within_twice_naive(broken, naive, oracle, unit * oracle.abs().max().item<double>()))
      << "one bound for the whole tensor would do";
  EXPECT_FALSE(attention_testing::within_twice_naive_by_rows(broken, naive, oracle, oracle, unit));
  AttentionOptions causal;
  causal.causal = true;
  EXPECT_TRUE(attention_testing::within_twice_naive_by_rows(attention(x.q, x.k, x.v, causal), naive,
                                                            oracle, oracle, unit));
}

}  // namespace
}  // namespace flashstep
