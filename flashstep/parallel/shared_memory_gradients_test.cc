// Gradients that autograd hands over in one memory, and that are averaged where they lie.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/test_cases.h"

namespace flashstep {
namespace {

using torch::Tensor;

// x -> x. The gradients of `a` and `b` are elements [0, 4) and [b_begin, b_begin + 4) of one
// tensor, which another one may keep.
struct OneMemory : torch::autograd::Function<OneMemory> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor&,
                        const Tensor&, int64_t b_begin, Tensor* kept) {
    context->saved_data["b_begin"] = b_begin;
    context->saved_data["kept"] = reinterpret_cast<int64_t>(kept);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor memory = gradients[0].sum() * torch::arange(1.0, 9.0);
    if (auto* kept = reinterpret_cast<Tensor*>(context->saved_data["kept"].toInt())) *kept = memory;
    const int64_t begin = context->saved_data["b_begin"].toInt();
    return {gradients[0], memory.slice(0, 0, 4), memory.slice(0, begin, begin + 4), Tensor(),
            Tensor()};
  }
};

struct Net {
  Tensor x = torch::ones({1}).requires_grad_(), a = torch::zeros({4}).requires_grad_(),
         b = torch::zeros({4}).requires_grad_();
  std::vector<Tensor> parameters() const { return {x, a, b}; }
  void clear() const {
    for (const Tensor& parameter : parameters()) parameter.mutable_grad().reset();
  }
};

void expect_means(const Group& group, double bucket_megabytes, int64_t b_begin, bool keeps,
                  bool stays) {
  const Net net;
  GradientReducer reducer(
      net.parameters(), group,
      {.bucket_megabytes = bucket_megabytes, .reorder = false, .flat_buckets = false});
  const Tensor counts = torch::arange(1.0, 9.0);
  for (int step = 0; step < 3; ++step) {  // the first sends after backward
    net.clear();
    Tensor kept;
    const double own = group.rank() + 1.0;
    (OneMemory::apply(net.x, net.a, net.b, b_begin, keeps ? &kept : nullptr) * own)
        .sum()
        .backward();
    reducer.finish_gradient_synchronization();
    EXPECT_TRUE(net.x.grad().equal(torch::tensor({1.5F})));
    EXPECT_TRUE(net.a.grad().equal(1.5 * counts.slice(0, 0, 4))) << net.a.grad();
    EXPECT_TRUE(net.b.grad().equal(1.5 * counts.slice(0, b_begin, b_begin + 4))) << net.b.grad();
    EXPECT_EQ(net.a.grad().storage().is_alias_of(net.b.grad().storage()), stays);
    EXPECT_TRUE(!keeps || kept.equal(own * counts)) << kept;
  }
}

TEST(SharedMemory, NeighboursStayWhereTheyAre) {
  on_ranks(2, [](const Group& group) {
    constexpr double kOneBucket = 25;
    expect_means(group, kOneBucket, /*b_begin=*/4, /*keeps=*/false, /*stays=*/true);
  });
}

TEST(SharedMemory, WhatTwoLookIntoIsCopied) {
  on_ranks(2, [](const Group& group) {
    for (const int64_t begin : {0, 1, 3})
      expect_means(group, 25, begin, /*keeps=*/false, /*stays=*/false);
    expect_means(group, 25, /*b_begin=*/4, /*keeps=*/true, /*stays=*/false);
    constexpr double kBucketEach = 1e-6;
    expect_means(group, kBucketEach, /*b_begin=*/4, /*keeps=*/false, /*stays=*/false);
  });
}

}  // namespace
}  // namespace flashstep
