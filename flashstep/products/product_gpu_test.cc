// Products of every layout against float64.
#include <vector>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/products/cuda/counters.h"
#include "flashstep/products/lt.h"
#include "flashstep/products/product.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::kGpu;

class ProductGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(5);
  }
};

Tensor randn(at::IntArrayRef shape, at::ScalarType dtype) {
  return torch::randn(shape, at::TensorOptions(kGpu)).to(dtype);
}

// (rows, columns), by rows or by columns in memory.
Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype, bool by_columns) {
  return by_columns ? randn({columns, rows}, dtype).t() : randn({rows, columns}, dtype);
}

void expect_product(const Tensor& a, const Tensor& b, at::ScalarType result, bool adds) {
  const Tensor oracle = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  Tensor d = at::full(oracle.sizes(), NAN, a.options().dtype(result));
  const Tensor c = adds ? randn(oracle.sizes(), result) : Tensor();
  product(a, b, d, c);
  const Tensor expected = adds ? oracle + c.to(at::kDouble) : oracle;
  // Sums of K products in float32, in any order; what is added is added to the rounded product.
  const double k = static_cast<double>(a.size(1));
  const double unit = result == at::kFloat ? 6e-8 : result == at::kHalf ? 5e-4 : 4e-3;
  const Tensor allowed = 4e-7 * k + unit * (2 * expected.abs() + oracle.abs());
  const auto expect_close = [&](const Tensor& got) {
    EXPECT_TRUE(testing::close_within(got, expected, allowed))
        << a.sizes() << a.strides() << b.sizes() << b.strides() << result << adds;
  };
  expect_close(d);
  if (!adds) return;
  product(a, b, c, c);  // in place
  expect_close(c);
}

TEST_F(ProductGpu, AgreesWithFloat64) {
  const std::vector<std::vector<int64_t>> sizes = {{1, 1, 1},     {1, 64, 8},    {8, 1, 16},
                                                   {5, 7, 3},     {257, 33, 65}, {128, 1600, 256},
                                                   {64, 64, 2048}};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& size : sizes) {
      for (int layout = 0; layout < 4; ++layout) {
        const Tensor a = matrix(size[0], size[2], dtype, layout & 1);
        const Tensor b = matrix(size[2], size[1], dtype, layout & 2);
        for (const auto result : {dtype, at::kFloat}) {
          expect_product(a, b, result, false);
          expect_product(a, b, result, true);
        }
      }
    }
  }
}

// Whatever lies by rows or by columns, in parts of larger matrices or one behind the other.
TEST_F(ProductGpu, OfABatchAgreesWithFloat64) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {5, 7, 3}, {64, 96, 160}, {257, 33, 65}}) {
      for (int layout = 0; layout < 8; ++layout) {
        const auto batch = [&](int64_t rows, int64_t columns, bool by_columns) {
          const Tensor whole = by_columns ? randn({3, columns, rows + 8}, dtype).transpose(1, 2)
                                          : randn({3, rows, columns + 8}, dtype);
          return by_columns ? whole.slice(1, 0, rows) : whole.slice(2, 0, columns);
        };
        const Tensor a = batch(m, k, layout & 1), b = batch(k, n, layout & 2);
        const Tensor c = batch(m, n, false), d = at::full_like(c, NAN);
        const Tensor like_c = at::empty_strided(c.sizes(), c.strides(), c.options()).fill_(NAN);
        const bool adds = layout & 4;
        Tensor expected = 0.5 * at::bmm(a.to(at::kDouble), b.to(at::kDouble));
        batched_product(a, b, adds ? like_c : d, 0.5, adds ? c : Tensor(), -2);
        if (adds) expected = expected - 2 * c.to(at::kDouble);
        const double unit = dtype == at::kFloat ? 6e-8 : dtype == at::kHalf ? 5e-4 : 4e-3;
        const Tensor allowed = 4e-7 * k + unit * (4 * expected.abs() + 4 * c.abs() + 1);
        EXPECT_TRUE(testing::close_within(adds ? like_c : d, expected, allowed))
            << dtype << ' ' << m << ' ' << n << ' ' << k << ' ' << layout;
      }
    }
  }
}

struct SplitProducts {
  SplitProducts() { set_float32_products(Float32Products::kSplit); }
  ~SplitProducts() { set_float32_products(Float32Products::kExact); }
};

// Two parts of 8 bits each leave 2^-17 of a number, on either side; tensor cores cut off what they
// add up at about 2^-23 of the sum, for every 16 of K.
TEST_F(ProductGpu, SplitsFloat32IntoBFloat16) {
  const auto distance = [](const Tensor& got, const Tensor& oracle) {
    return ((got - oracle).square().mean().sqrt() / oracle.square().mean().sqrt()).item<double>();
  };
  for (const auto& size : std::vector<std::vector<int64_t>>{
           {64, 64, 64}, {65, 129, 67}, {200, 72, 1001}, {256, 512, 4096}}) {
    for (int layout = 0; layout < 4; ++layout) {
      SCOPED_TRACE(flashstep::str(at::IntArrayRef(size), ", layout ", layout));
      const Tensor a = matrix(size[0], size[2], at::kFloat, layout & 1);
      const Tensor b = matrix(size[2], size[1], at::kFloat, layout & 2);
      const Tensor oracle = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      Tensor exact = at::empty(oracle.sizes(), a.options()), split = at::empty_like(exact);
      product(a, b, exact);
      const Tensor added = exact.clone();
      {
        const SplitProducts split_now;
        product(a, b, split);
        product(a, b, added, added);
      }
      EXPECT_LT(distance(split, oracle), 2e-5);
      EXPECT_LT(distance(added, 2 * oracle), 2e-5);
      EXPECT_GT(distance(split, oracle), 2 * distance(exact, oracle)) << "nothing was split";
    }
  }
  const SplitProducts split_again;
  const Tensor a = randn({64, 64}, at::kFloat), d = at::empty_like(a);
  for (const double number : {static_cast<double>(INFINITY), static_cast<double>(NAN), 3.4e38}) {
    Tensor spoilt = a.clone();
    spoilt[3][5] = number;
    product(spoilt, a, d);
    EXPECT_FALSE(d[3].isfinite().any().item<bool>()) << number;
    EXPECT_TRUE(d[4].isfinite().all().item<bool>()) << number;
  }
}

TEST_F(ProductGpu, AsksForTf32AsPyTorchsNewSwitchesSay) {
  auto& context = at::globalContext();
  const auto set = [&](at::Float32Precision precision) {
    context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL, precision);
  };
  const Tensor a = randn({256, 512}, at::kFloat), b = randn({512, 128}, at::kFloat);
  const Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const Tensor d = at::empty({256, 128}, a.options());
  const auto error = [&] {
    product(a, b, d);
    return ((d - exact).square().mean().sqrt() / exact.square().mean().sqrt()).item<double>();
  };
  set(at::Float32Precision::TF32);
  const double rounded = error();
  product(a.to(at::kBFloat16), b.to(at::kBFloat16), d);
  set(at::Float32Precision::IEEE);
  const double whole = error();
  context.setAllowTF32CuBLAS(false);
  EXPECT_GT(rounded, 1e-4);
  EXPECT_LT(rounded, 1e-3);
  EXPECT_LT(whole, 1e-6);
}

TEST_F(ProductGpu, TakesAlgorithmsByTheirNumber) {
  const ProductShape shape = {at::kBFloat16, at::kBFloat16, 512, 768, 256, false, true, false};
  const Tensor a = randn({512, 256}, at::kBFloat16), b = randn({768, 256}, at::kBFloat16).t();
  const Tensor d = at::empty({512, 768}, a.options()), by_number = at::empty_like(d);
  product(a, b, d);
  const auto shapes = internal::lt_shapes();
  EXPECT_EQ(std::count(shapes.begin(), shapes.end(), shape), 1);
  const int64_t count = internal::lt_algorithms(a, b, d, {});
  EXPECT_GT(count, 1);
  for (int64_t i = 0; i < count; ++i) {
    internal::lt_product_by(i, a, b, by_number, {});
    EXPECT_TRUE(testing::close(by_number.to(at::kFloat), d.to(at::kFloat), 0.5, 0.01)) << i;
    const Tensor first = by_number.clone();
    internal::lt_product_by(i, a, b, by_number, {});
    EXPECT_TRUE(testing::same_bits(first, by_number)) << i;
  }
}

TEST_F(ProductGpu, TakesPartsOfMatrices) {
  const Tensor wide = randn({64, 96}, at::kBFloat16);
  expect_product(wide.narrow(1, 32, 48), randn({48, 40}, at::kBFloat16), at::kBFloat16, true);
  expect_product(wide.narrow(0, 8, 40).t(), wide.narrow(0, 8, 40), at::kFloat, false);
  const Tensor row = randn({48}, at::kBFloat16), other = randn({48, 40}, at::kBFloat16);
  expect_product(row.expand({64, 48}), other, at::kBFloat16, false);
  expect_product(row.expand({40, 48}).t(), other.t(), at::kFloat, false);
  expect_product(randn({111}, at::kBFloat16).unfold(0, 48, 1), other, at::kFloat, true);
  expect_product(wide.slice(1, 0, 96, 2), randn({48, 40}, at::kBFloat16), at::kFloat, false);
}

TEST_F(ProductGpu, RepeatsItsBits) {
  const Tensor a = randn({512, 4096}, at::kBFloat16), b = randn({4096, 256}, at::kBFloat16);
  Tensor first = at::empty({512, 256}, a.options()), again = at::empty_like(first);
  product(a, b, first);
  for (int repeat = 0; repeat < 5; ++repeat) {
    product(a, b, again);
    EXPECT_TRUE(testing::same_bits(again, first));
  }
}

// LibTorch's setting holds: parts of a long sum are added up in float32, and the result is rounded
// once.
TEST_F(ProductGpu, AddsPartsInFloat32WhereLibTorchIsToldTo) {
  const Tensor a = at::rand({64, 65536}, at::kCUDA).to(at::kBFloat16);
  const Tensor b = at::rand({65536, 64}, at::kCUDA).to(at::kBFloat16);
  const Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const Tensor d = at::empty({64, 64}, a.options());
  const auto error = [&](bool in_16_bits, bool may_split) {
    at::globalContext().setAllowBF16ReductionCuBLAS(in_16_bits, may_split);
    product(a, b, d);
    return ((d.to(at::kDouble) - exact) / exact).abs().max().item<double>();
  };
  const double by_default = error(true, true), split = error(false, true),
               whole = error(false, false);
  at::globalContext().setAllowBF16ReductionCuBLAS(true, true);
  const double bound = 1.2 / 256;  // half a unit of bf16's last place, and float32's sum
  EXPECT_LT(split, bound);
  EXPECT_LT(whole, bound);
  if (by_default < bound) GTEST_SKIP() << "cuBLASLt adds these parts in float32 by itself";
}

TEST_F(ProductGpu, NamesWhatIsWrong) {
  const Tensor a = randn({4, 6}, at::kBFloat16), b = randn({6, 8}, at::kBFloat16);
  const Tensor d = randn({4, 8}, at::kBFloat16);
  EXPECT_THROW(product(a, a, d), UserError);
  EXPECT_THROW(product(a, b.to(at::kHalf), d), UserError);
  EXPECT_THROW(product(a, b, d.to(at::kHalf)), UserError);
  EXPECT_THROW(product(a, b, d.t()), UserError);
  EXPECT_THROW(product(a, b, d, d.to(at::kFloat)), UserError);
}

int memsets_in(cudaGraph_t graph) {
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  int memsets = 0;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    memsets += type == cudaGraphNodeTypeMemset ? 1 : 0;
  }
  return memsets;
}

TEST_F(ProductGpu, CountersOfRecordedProductsAreZeroedTogether) {
  using products_cuda::RecordedCounters;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const Tensor a = matrix(2048, 1600, at::kBFloat16, false);
  const Tensor b = matrix(1600, 12800, at::kBFloat16, true);
  const Tensor expected = at::empty({2048, 12800}, a.options());
  product(a, b, expected);
  const Tensor memory =
      at::full({static_cast<int64_t>(RecordedCounters::kBytes)}, 7, a.options().dtype(at::kByte));
  const std::vector<Tensor> results = {at::zeros_like(expected), at::zeros_like(expected),
                                       at::zeros_like(expected)};
  at::cuda::CUDAGraph graph(/*keep_graph=*/true);
  graph.capture_begin();
  const RecordedCounters counters(memory.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
  for (const Tensor& d : results) product(a, b, d);
  graph.capture_end();
  if (memsets_in(graph.raw_cuda_graph()) == 0) GTEST_SKIP() << "a GPU whose product has no counter";
  EXPECT_EQ(memsets_in(graph.raw_cuda_graph()), 3);
  C10_CUDA_CHECK(counters.zero_at_start(graph.raw_cuda_graph()));
  EXPECT_EQ(memsets_in(graph.raw_cuda_graph()), 1);
  graph.instantiate();
  for (int replay = 0; replay < 3; ++replay) {
    for (const Tensor& d : results) d.zero_();
    graph.replay();
    for (const Tensor& d : results) EXPECT_TRUE(testing::same_bits(d, expected));
  }
}

}  // namespace
}  // namespace flashstep
