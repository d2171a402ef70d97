// Sums of float32 over more rows than one accumulator takes, where two passes have less memory than
// parts and take these in waves, on a GPU.
#include <torch/cuda.h>

#include "flashstep/attention/attention_test.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::Inputs;
using attention_testing::largest_by_rows;
using attention_testing::random_inputs;
using attention_testing::Results;
using testing::kGpu;

class LongAttentionGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(31);
  }
};

Results run(const Inputs& x, bool deterministic) {
  AttentionOptions options;
  options.causal = true;
  options.deterministic = deterministic;
  return attention_testing::run(x, options, "cuda", at::kFloat);
}

// The formula's gradients in `dtype` under a causal mask, the scores of 2048 queries at a time.
Results gradients_in_blocks(const Inputs& x, at::ScalarType dtype) {
  constexpr int64_t kRows = 2048;
  const Tensor q = x.q.to(dtype), k = x.k.to(dtype), v = x.v.to(dtype), grad = x.grad_out.to(dtype);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  Results to;
  to.grad_q = at::zeros_like(q), to.grad_k = at::zeros_like(k), to.grad_v = at::zeros_like(v);
  for (int64_t begin = 0; begin < q.size(-2); begin += kRows) {
    const int64_t rows = std::min(kRows, q.size(-2) - begin);
    const int64_t seen = std::min(begin + rows, k.size(-2));
    const auto queries = [&](const Tensor& t) { return t.narrow(-2, begin, rows); };
    const auto keys = [&](const Tensor& t) { return t.narrow(-2, 0, seen); };
    const Tensor hidden = at::ones({rows, seen}, q.options().dtype(at::kBool)).triu(begin + 1);
    const Tensor scores = at::matmul(queries(q), keys(k).transpose(-2, -1)).mul_(scale);
    const Tensor p = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
    const Tensor out = at::matmul(p, keys(v));
    const Tensor dots = (queries(grad) * out).sum(-1, /*keepdim=*/true);
    const Tensor ds = at::matmul(queries(grad), keys(v).transpose(-2, -1)).sub_(dots).mul_(p);
    queries(to.grad_q).copy_(at::matmul(ds, keys(k)).mul_(scale));
    keys(to.grad_k).add_(at::matmul(ds.transpose(-2, -1), queries(q)), scale);
    keys(to.grad_v).add_(at::matmul(p.transpose(-2, -1), queries(grad)));
  }
  return to;
}

// 32 parts of 2048 rows, of which two passes keep 8 at a time: waves add to slices. Summed in one
// piece dK and dV are 19 and 15 times as far off as the formula by blocks, summed so twice.
TEST_F(LongAttentionGpu, LongSumsOfOneHeadAreAsExactAsTheFormulaByBlocks) {
  const Inputs x = random_inputs({{1}, 0, 65536, 65536, 64}, at::kFloat, kGpu);
  const Results oracle = gradients_in_blocks(x, at::kDouble);
  const Results blocks = gradients_in_blocks(x, at::kFloat);
  for (const bool deterministic : {true, false}) {
    const Results got = run(x, deterministic);
    for (const auto part : {&Results::grad_k, &Results::grad_v}) {
      const auto error = [&](const Results& r) {
        return (r.*part - oracle.*part).abs().max().item<double>();
      };
      EXPECT_TRUE(error(got) <= 5 * error(blocks))
          << (part == &Results::grad_k ? "dk " : "dv ") << error(got) << " beside " << error(blocks)
          << (deterministic ? ", deterministic" : ", fastest");
    }
    EXPECT_TRUE(
        testing::close_within(got.grad_q, oracle.grad_q, 2e-5 * largest_by_rows(oracle.grad_q)));
    if (!deterministic) continue;
    const Results again = run(x, deterministic);
    for (const auto part : {&Results::grad_q, &Results::grad_k, &Results::grad_v}) {
      EXPECT_TRUE(testing::same_bits(again.*part, got.*part));
    }
  }
}

// One slice of all heads' sums is more than two passes may keep: waves add to the results. One head
// alone has slices.
TEST_F(LongAttentionGpu, ManyHeadsAddToTheirResults) {
  constexpr int64_t kHeads = 128;
  const Inputs x = random_inputs({{kHeads}, 0, 8192, 8100, 64}, at::kFloat, kGpu);
  const Results all = run(x, /*deterministic=*/true), again = run(x, /*deterministic=*/true);
  for (const int64_t head : {int64_t{0}, kHeads - 1}) {
    const auto one = [&](const Tensor& t) { return t.narrow(0, head, 1); };
    const Results alone = run({one(x.q), one(x.k), one(x.v), one(x.grad_out), {}}, true);
    const Results oracle =
        gradients_in_blocks({one(x.q), one(x.k), one(x.v), one(x.grad_out), {}}, at::kDouble);
    for (const auto part : {&Results::grad_q, &Results::grad_k, &Results::grad_v}) {
      EXPECT_TRUE(testing::close_within(one(all.*part), oracle.*part,
                                        2e-5 * largest_by_rows(oracle.*part)));
      EXPECT_TRUE(
          testing::close_within(alone.*part, oracle.*part, 2e-5 * largest_by_rows(oracle.*part)));
      EXPECT_TRUE(testing::same_bits(one(again.*part), one(all.*part)));
    }
  }
}

// Of short documents between two long ones only the first and the last waves have work: the sums of
// parts wait for all the same.
TEST_F(LongAttentionGpu, WavesWithoutWorkWaitForThoseBefore) {
  const std::pair<std::vector<int64_t>, int64_t> kShapes[] = {
      {{8, 8}, 8192}, {{2, 8}, 16384}, {{1, 1}, 65536}};
  for (const auto& [leading, n] : kShapes) {
    const Inputs x = random_inputs({leading, 0, n, n, 64}, at::kFloat, kGpu);
    const Tensor place = at::arange(n, at::TensorOptions(kGpu).dtype(at::kLong));
    const Tensor ids =
        at::where(place < 2048, 0, at::where(place >= n - 2048, 1, 2 + place.div(50, "floor")));
    AttentionOptions options;
    options.documents = document_spans(ids.expand({leading.front(), n}));
    options.deterministic = false;
    const Results other = attention_testing::run(x, options, "cuda", at::kFloat);
    options.deterministic = true;
    const Results first = attention_testing::run(x, options, "cuda", at::kFloat);
    for (int time = 0; time < 20; ++time) {
      const Results again = attention_testing::run(x, options, "cuda", at::kFloat);
      for (const auto part : {&Results::grad_q, &Results::grad_k, &Results::grad_v}) {
        ASSERT_TRUE(testing::same_bits(again.*part, first.*part)) << n << ", time " << time;
        ASSERT_TRUE(
            testing::close_within(again.*part, other.*part, 1e-4 * largest_by_rows(other.*part)));
      }
    }
  }
}

}  // namespace
}  // namespace flashstep
