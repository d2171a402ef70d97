// The CUDA kernels against float64 on a GPU: every padded head dim, both sides of every tile edge,
// all masks and dtypes; and how they behave on streams, in graphs, among threads and in little
// memory.
#include <thread>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "flashstep/attention/attention_test.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::cuda;
using attention_testing::expect_right;
using attention_testing::Inputs;
using attention_testing::kGpuDtypes;
using attention_testing::masks;
using attention_testing::random_inputs;
using attention_testing::Shape;
using testing::kGpu;

class AttentionGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(11);
  }
};

void sweep(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    for (const auto dtype : kGpuDtypes) {
      const Inputs inputs = random_inputs(shape, dtype, kGpu);
      for (AttentionOptions mask : masks()) {
        const auto reference = attention_testing::reference_of(inputs, mask);
        for (const bool deterministic : {true, false}) {
          mask.deterministic = deterministic;
          attention_testing::expect_results(
              attention_testing::run(inputs, mask, "cuda", dtype), reference,
              attention_testing::unit_of(dtype, shape.d),
              attention_testing::text(shape) + (deterministic ? " deterministic" : " fastest"));
        }
      }
      if (::testing::Test::HasFailure()) return;  // the first shape says enough
    }
  }
}

TEST_F(AttentionGpu, EveryHeadDim) {
  std::vector<Shape> shapes;
  for (const int64_t d : {8, 16, 24, 32, 40, 64, 72, 96, 104, 128, 136, 160, 192, 200, 256}) {
    shapes.push_back({{2, 3}, 0, 131, 197, d});
  }
  sweep(shapes);
}

TEST_F(AttentionGpu, EveryEdgeOfTheTiles) {
  const int64_t sizes[] = {1,  2,  15, 16,  17,  31,  33,  63,  64, 65,
                           79, 80, 81, 127, 128, 129, 191, 193, 257};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const int64_t other = sizes[(7 * i + 5) % std::size(sizes)];
    for (const int64_t d : {64, 128}) shapes.push_back({{1, 2}, 0, sizes[i], other, d});
    shapes.push_back({{2}, 0, sizes[i], sizes[i], 16});
  }
  sweep(shapes);
}

TEST_F(AttentionGpu, EdgesOfTheTilesOfOtherHeadDims) {
  const int64_t sizes[] = {31, 33, 63, 65, 95, 97, 127, 129};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const int64_t other = sizes[(3 * i + 5) % std::size(sizes)];
    for (const int64_t d : {32, 96, 192, 256}) shapes.push_back({{1, 2}, 0, sizes[i], other, d});
  }
  sweep(shapes);
}

// Where the keys and the queries are split.
std::vector<Shape> long_and_few_heads() {
  return {{{1}, 0, 2048, 2048, 64}, {{1}, 0, 1, 8192, 128},      {{1}, 0, 7, 4099, 64},
          {{1}, 0, 4099, 7, 64},    {{1, 2}, 1, 1031, 3001, 32}, {{1}, 0, 3001, 1031, 256}};
}

TEST_F(AttentionGpu, LongAndFewHeads) { sweep(long_and_few_heads()); }

TEST_F(AttentionGpu, GroupedQueriesAndManyLeadingDimensions) {
  sweep({{{2, 8}, 2, 65, 129, 64},
         {{1, 6}, 1, 130, 70, 32},
         {{2, 1, 2, 3}, 0, 33, 65, 16},
         {{}, 0, 70, 71, 128},
         {{3, 4}, 1, 17, 300, 80}});
}

TEST_F(AttentionGpu, DocumentsAreApart) {
  for (const auto& [shape, length] : {std::pair(Shape{{2, 4}, 2, 300, 300, 64}, 40.0),
                                      std::pair(Shape{{1, 2}, 0, 700, 700, 128}, 250.0),
                                      std::pair(Shape{{2, 2}, 0, 257, 257, 96}, 1.5),
                                      std::pair(Shape{{3, 2}, 1, 200, 200, 32}, 64.0),
                                      std::pair(Shape{{1, 2}, 0, 190, 190, 256}, 30.0),
                                      std::pair(Shape{{2, 1, 2}, 0, 150, 150, 192}, 50.0),
                                      std::pair(Shape{{1, 1}, 0, 4099, 4099, 64}, 900.0),
                                      std::pair(Shape{{2, 2}, 0, 1500, 1500, 16}, 300.0)}) {
    auto rows = shape.leading;
    rows.back() = shape.n;
    for (const auto dtype : kGpuDtypes) {
      const Inputs inputs = random_inputs(shape, dtype, kGpu);
      for (AttentionOptions mask : attention_testing::masks_of_documents(rows, length, kGpu)) {
        const auto reference = attention_testing::reference_of(inputs, mask, true);
        for (const bool deterministic : {true, false}) {
          mask.deterministic = deterministic;
          attention_testing::expect_results(
              attention_testing::run(inputs, mask, "cuda", dtype, true), reference,
              attention_testing::unit_of(dtype, shape.d),
              attention_testing::text(shape) + (deterministic ? " deterministic" : " fastest"));
        }
      }
      if (HasFailure()) return;  // the first shape says enough
    }
  }
}

// What a graph recorded reads its documents when it is replayed.
TEST_F(AttentionGpu, ReplaysWithOtherDocuments) {
  for (const int64_t d : {64, 32}) {
    const Inputs x = random_inputs({{2, 4}, 0, 512, 512, d}, at::kBFloat16, kGpu);
    const Tensor ids = torch::zeros({2, 512}, at::TensorOptions(kGpu).dtype(at::kLong));
    const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
    const Tensor q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
    const auto step = [&] {
      AttentionOptions options = cuda(true, true);
      options.documents = document_spans(ids);
      const Tensor out = attention(q, k, v, options);
      auto results = torch::autograd::grad({out}, {q, k, v}, {x.grad_out});
      results.push_back(out.detach());
      return results;
    };
    const at::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
    step();
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    const auto recorded = step();
    graph.capture_end();
    for (const double length : {5.0, 100.0, 1000.0}) {
      ids.copy_((torch::rand({2, 512}) < 1 / length).cumsum(-1));
      graph.replay();
      const auto expected = step();
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(testing::same_bits(recorded[i], expected[i])) << d << " " << length << " " << i;
    }
  }
}

TEST_F(AttentionGpu, TheLogsumexpHasAGradient) {
  for (const auto dtype : kGpuDtypes) {
    const auto inputs = random_inputs({{2, 4}, 2, 131, 97, 64}, dtype, kGpu);
    for (AttentionOptions mask : masks()) {
      for (const bool deterministic : {true, false}) {
        mask.deterministic = deterministic;
        expect_right(inputs, mask, "cuda", "gradient of both", /*with_grad_logsumexp=*/true);
      }
    }
  }
}

TEST_F(AttentionGpu, AnyFiniteScale) {
  const auto inputs = random_inputs({{1, 2}, 0, 100, 150, 32}, at::kFloat, kGpu);
  for (const double scale : {0.0, -0.3, 1e-6, 4.0}) {
    for (AttentionOptions mask : masks()) {
      mask.scale = scale;
      expect_right(inputs, mask, "cuda", str("scale ", scale));
    }
  }
}

TEST_F(AttentionGpu, AnyLayout) {
  for (const auto dtype : kGpuDtypes) {
    const Inputs plain = random_inputs({{2, 3}, 0, 67, 67, 40}, dtype, kGpu);
    const auto packed = torch::randn({2, 67, 3, 3, 40}).to(kGpu, dtype);  // (B, N, 3, H, D)
    Inputs strided = plain;
    strided.q = packed.select(2, 0).transpose(1, 2);
    strided.k = packed.select(2, 1).transpose(1, 2);
    strided.v = packed.select(2, 2).transpose(1, 2);
    strided.grad_out = torch::randn({2, 67, 3, 40}).to(kGpu, dtype).transpose(1, 2);
    expect_right(strided, cuda(true), "cuda", "one packed projection");

    Inputs odd = plain;  // rows that begin off every 16-byte line, and columns that lie apart
    odd.q = torch::randn({2 * 3 * 67 * 40 + 1}).to(kGpu, dtype).narrow(0, 1, 2 * 3 * 67 * 40);
    odd.q = odd.q.view({2, 3, 67, 40});
    odd.k = torch::randn({2, 3, 40, 67}).to(kGpu, dtype).transpose(2, 3);
    odd.v = torch::randn({2, 3, 67, 41}).to(kGpu, dtype).narrow(3, 1, 40);
    odd.grad_out = torch::randn({1, 1, 1, 1}).to(kGpu, dtype).expand({2, 3, 67, 40});
    expect_right(odd, cuda(true), "cuda", "misaligned");
  }
}

struct Step {
  Tensor out, grad_q, grad_k, grad_v;
};

Step step(const Inputs& x, const AttentionOptions& options) {
  auto q = x.q.detach().requires_grad_(), k = x.k.detach().requires_grad_(),
       v = x.v.detach().requires_grad_();
  const auto out = attention(q, k, v, options);
  const auto g = torch::autograd::grad({out}, {q, k, v}, {x.grad_out});
  return {out.detach(), g[0], g[1], g[2]};
}

::testing::AssertionResult same(const Step& a, const Step& b) {
  for (const auto part : {&Step::out, &Step::grad_q, &Step::grad_k, &Step::grad_v}) {
    if (const auto result = testing::same_bits(a.*part, b.*part); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

// Sums in another order, rounded to bfloat16 (2^-8 apart): two units, relative to the rows nearby.
::testing::AssertionResult near(const Tensor& actual, const Tensor& expected) {
  return testing::close_within(actual, expected,
                               8e-3 * attention_testing::largest_by_rows(expected));
}

TEST_F(AttentionGpu, DeterministicMeansEqualBits) {
  for (const auto dtype : kGpuDtypes) {
    for (const Shape& shape : {Shape{{4, 4}, 0, 1024, 1024, 64}, Shape{{1}, 0, 4096, 4096, 128},
                               Shape{{2, 4}, 2, 333, 777, 96}}) {
      const auto inputs = random_inputs(shape, dtype, kGpu);
      const Step first = step(inputs, cuda(true, true));
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(same(step(inputs, cuda(true, true)), first)) << dtype;
    }
  }
}

// Calls nothing but our kernels, for compute-sanitizer: its racecheck ends in an error of its own
// in cuBLAS's products of such sizes.
TEST_F(AttentionGpu, SplitsRepeatAndAgree) {
  for (const auto dtype : kGpuDtypes) {
    for (const Shape& shape : long_and_few_heads()) {
      for (const bool causal : {false, true}) {
        const auto inputs = random_inputs(shape, dtype, kGpu);
        const Step first = step(inputs, cuda(causal, true));
        EXPECT_TRUE(same(step(inputs, cuda(causal, true)), first)) << dtype;
        const Step fastest = step(inputs, cuda(causal, false));
        // dS cancels, to zero in a row that sees one key: LongAndFewHeads holds dq and dk.
        for (const auto part : {&Step::out, &Step::grad_v})
          EXPECT_TRUE(near(fastest.*part, first.*part)) << dtype << attention_testing::text(shape);
      }
    }
  }
}

TEST_F(AttentionGpu, AnyStreamAndFourThreads) {
  const auto inputs = random_inputs({{2, 4}, 0, 700, 700, 64}, at::kBFloat16, kGpu);
  const Step expected = step(inputs, cuda(true, true));
  torch::cuda::synchronize();
  std::vector<Step> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      const auto stream = c10::cuda::getStreamFromPool();
      const c10::cuda::CUDAStreamGuard guard(stream);
      for (int i = 0; i < 20; ++i) result = step(inputs, cuda(true, true));
      stream.synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_TRUE(same(result, expected));
}

TEST_F(AttentionGpu, CapturedInAGraph) {
  for (const bool deterministic : {true, false}) {
    const auto inputs = random_inputs({{1}, 0, 900, 900, 64}, at::kBFloat16, kGpu);
    const auto others = random_inputs({{1}, 0, 900, 900, 64}, at::kBFloat16, kGpu);
    Inputs fixed = inputs;
    for (auto* x : {&fixed.q, &fixed.k, &fixed.v, &fixed.grad_out}) *x = x->clone();
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    step(fixed, cuda(true, deterministic));
    torch::cuda::synchronize();
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    const Step captured = step(fixed, cuda(true, deterministic));
    graph.capture_end();
    for (const Inputs* x : {&inputs, &others}) {
      fixed.q.copy_(x->q);
      fixed.k.copy_(x->k);
      fixed.v.copy_(x->v);
      fixed.grad_out.copy_(x->grad_out);
      graph.replay();
      torch::cuda::synchronize();
      const Step direct = step(*x, cuda(true, deterministic));
      if (deterministic) {
        EXPECT_TRUE(same(captured, direct));
      } else {  // atomic additions in another order
        EXPECT_TRUE(testing::same_bits(captured.out, direct.out));
        for (const auto part : {&Step::grad_q, &Step::grad_k, &Step::grad_v}) {
          EXPECT_TRUE(near(captured.*part, direct.*part));
        }
      }
    }
  }
}

TEST_F(AttentionGpu, MemoryGrowsWithNOnly) {
  constexpr int64_t kLength = 131072, kLimitBytes = int64_t{1} << 30;
  for (const bool deterministic : {true, false}) {
    const auto x = random_inputs({{1}, 0, kLength, kLength, 64}, at::kBFloat16, kGpu);
    torch::cuda::synchronize();
    measure::reset_gpu_peak_allocated();
    const uint64_t before = measure::gpu_allocated_bytes();
    const Step result = step(x, cuda(true, deterministic));
    torch::cuda::synchronize();
    const uint64_t kept = measure::gpu_allocated_bytes() - before;
    EXPECT_LT(measure::gpu_peak_allocated_bytes() - before - kept, kLimitBytes);
    EXPECT_TRUE(at::isfinite(result.grad_q).all().item<bool>());
  }
}

// More than 2^31 elements in q, then in k: the last head is where a 32-bit offset would go wrong.
TEST_F(AttentionGpu, OffsetsBeyond32Bits) {
  const int64_t heads = 525, d = 64;
  for (const bool long_queries : {true, false}) {
    const int64_t n = long_queries ? 65536 : 64, m = long_queries ? 64 : 65536;
    const auto make = [&](int64_t rows) {
      return torch::randn({1, heads, rows, d}, torch::TensorOptions(kGpu).dtype(at::kBFloat16));
    };
    Inputs x{make(n), make(m), make(m), make(n), {}};
    ASSERT_GT(std::max(x.q.numel(), x.k.numel()), int64_t{1} << 31);
    const auto last = [&](const Tensor& t) { return t.narrow(1, heads - 1, 1).clone(); };
    for (const bool causal : {true, false}) {
      for (const bool deterministic : {true, false}) {
        const Step whole = step(x, cuda(causal, deterministic));
        const Step alone = step({last(x.q), last(x.k), last(x.v), last(x.grad_out), {}},
                                cuda(causal, deterministic));
        for (const auto part : {&Step::out, &Step::grad_q, &Step::grad_k, &Step::grad_v}) {
          EXPECT_TRUE(near(last(whole.*part), alone.*part));
        }
      }
    }
  }
}

TEST_F(AttentionGpu, NoBatchQueryOrKeyIsNoProblem) {
  const struct {
    std::vector<int64_t> q, k;
  } shapes[] = {{{2, 4, 0, 64}, {2, 4, 9, 64}},
                {{2, 4, 9, 64}, {2, 4, 0, 64}},
                {{0, 4, 9, 64}, {0, 4, 9, 64}},
                {{0, 64}, {0, 64}}};
  for (const auto dtype : kGpuDtypes) {
    for (const auto& shape : shapes) {
      for (const std::string name : {"auto", "cuda", "sdpa"}) {
        AttentionOptions options = cuda(false);
        options.implementation = name;
        const auto q = torch::randn(shape.q).to(kGpu, dtype).requires_grad_();
        const auto k = torch::randn(shape.k).to(kGpu, dtype).requires_grad_();
        const auto out = attention(q, k, k, options);
        EXPECT_TRUE(testing::same_bits(out.detach(), at::zeros_like(q)));
        if (name != "sdpa") {
          const auto [same_out, logsumexp] = attention_with_logsumexp(q, k, k, options);
          EXPECT_TRUE(testing::same_bits(same_out.detach(), at::zeros_like(q)));
          EXPECT_EQ(logsumexp.sizes(), q.sizes().slice(0, q.dim() - 1));
        }
        for (const auto& g : torch::autograd::grad({out}, {q, k}, {at::ones_like(q)})) {
          EXPECT_TRUE(testing::same_bits(g, at::zeros_like(g)));
        }
      }
    }
  }
}

TEST_F(AttentionGpu, AutoIsOursWhereItCanBe) {
  const auto x = torch::zeros({2, 4, 24, 320}, torch::TensorOptions(kGpu).dtype(at::kBFloat16));
  AttentionOptions options;
  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    for (const int64_t head_dim : {8, 64, 96, 128, 256}) {
      const auto narrow = x.narrow(-1, 0, head_dim);
      EXPECT_EQ(attention_auto(narrow, narrow, narrow, options), "cuda") << head_dim;
    }
    EXPECT_EQ(attention_auto(x, x, x, options), deterministic ? "naive" : "sdpa");
  }
}

TEST_F(AttentionGpu, RefusesOtherDevices) {
  const auto x = torch::zeros({1, 1, 4, 8});
  EXPECT_THROW(attention(x, x, x, cuda(false)), UserError);
  const auto y = x.to(kGpu);
  EXPECT_THROW(attention(y, x, y, cuda(false)), UserError);
}

}  // namespace
}  // namespace flashstep
