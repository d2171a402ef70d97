// The size of buckets: chosen, given, or kept from the run that is resumed.
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_cases.h"

namespace flashstep {
namespace {

using torch::Tensor;

TEST(Ranks, TheSizeOfBucketsIsChosenGivenOrKept) {
  on_ranks(2, [](const Group& group) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::ones({100}).requires_grad_());
    GradientReducer chosen(parameters, group);
    EXPECT_EQ(chosen.options().bucket_megabytes, 25);  // Gloo
    EXPECT_EQ(chosen.describe(), "bucketed, 1 bucket of up to 1 MB (chosen), by Gloo");
    GradientReducer given(parameters, group, {.bucket_megabytes = 0.0008});
    EXPECT_FALSE(given.bucket_size_is_chosen());
    EXPECT_EQ(given.describe(), "bucketed, 2 buckets of up to 1 MB, by Gloo");
    // A run that resumes goes on with the buckets that it had.
    const std::vector<int64_t> order = {0, 2, 1, 3};
    given.set_bucket_order(order);
    chosen.set_bucket_order(order, given.options().bucket_megabytes);
    EXPECT_EQ(chosen.buckets(), (std::vector<std::vector<int64_t>>{{0, 2}, {1, 3}}));
    EXPECT_EQ(chosen.buckets(), given.buckets());
    EXPECT_THROW(chosen.set_bucket_order(order, -1), UserError);
    EXPECT_THROW(GradientReducer(parameters, group, {.bucket_megabytes = -1}), UserError);
    EXPECT_EQ(GradientReducer(parameters, group, {.strategy = Strategy::kTorch}).describe(),
              "torch, buckets of 25 MB (chosen)");
  });
}

// CPUs have no copies from GPU to GPU, whatever the options say.
TEST(Ranks, SayWhatCarriesTheirGradients) {
  on_ranks(2, [](const Group& group) {
    const std::vector<Tensor> parameters = {torch::ones({100}).requires_grad_()};
    EXPECT_TRUE(ReducerOptions().peer_copies);
    for (const Strategy strategy : {Strategy::kBucketed, Strategy::kTorch}) {
      EXPECT_EQ(GradientReducer(parameters, group, {.strategy = strategy}).transport(), "Gloo");
    }
  });
  on_ranks(1, [](const Group& group) {
    EXPECT_EQ(GradientReducer({torch::ones({100}).requires_grad_()}, group).transport(), "");
  });
}

}  // namespace
}  // namespace flashstep
