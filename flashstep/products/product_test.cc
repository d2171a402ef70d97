#include "flashstep/products/product.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

TEST(Product, AddsWhereItIsAsked) {
  torch::manual_seed(3);
  const Tensor a = torch::randn({5, 7}), b = torch::randn({3, 7}).t(), c = torch::randn({5, 3});
  Tensor d = torch::full({5, 3}, NAN);
  product(a, b, d);
  EXPECT_TRUE(testing::close(d, at::mm(a, b), 1e-5));
  product(a, b, d, c);
  EXPECT_TRUE(testing::close(d, at::mm(a, b) + c, 1e-5));
  product(a, b, d, d);
  EXPECT_TRUE(testing::close(d, at::mm(a, b) * 2 + c, 1e-5));
}

TEST(Product, TakesWhatOverlaps) {
  torch::manual_seed(3);
  const Tensor row = torch::randn({6}), b = torch::randn({6, 3}), d = torch::empty({5, 3});
  product(row.expand({5, 6}), b, d);
  EXPECT_TRUE(testing::close(d, at::mm(row.expand({5, 6}), b), 1e-5));
}

TEST(Product, SumsSixteenBitsInFloat32) {
  const Tensor a = torch::ones({1, 4096}, at::kBFloat16), b = torch::ones({4096, 1}, at::kBFloat16);
  Tensor wide = torch::empty({1, 1}), narrow = torch::empty({1, 1}, at::kBFloat16);
  product(a, b, wide);
  product(a, b, narrow);
  EXPECT_EQ(wide.item<float>(), 4096);
  EXPECT_EQ(narrow.item<float>(), 4096);
}

TEST(Product, OfNothingIsNothing) {
  Tensor d = torch::full({2, 3}, NAN), none = torch::empty({0, 3});
  product(torch::empty({2, 0}), torch::empty({0, 3}), d);
  EXPECT_TRUE(testing::close(d, torch::zeros({2, 3}), 0));
  product(torch::empty({0, 4}), torch::empty({4, 3}), none);
}

TEST(Product, NamesWhatIsWrong) {
  const Tensor a = torch::ones({4, 6}), b = torch::ones({6, 8}), d = torch::ones({4, 8});
  EXPECT_THROW(product(a, a, d), UserError);
  EXPECT_THROW(product(a, b.to(at::kBFloat16), d), UserError);
  EXPECT_THROW(product(a, b, d.to(at::kBFloat16)), UserError);
  EXPECT_THROW(product(a, b, d, torch::ones({8, 4}).t()), UserError);
}

}  // namespace
}  // namespace flashstep
