// Gradients of a dtype that was not announced, or not everywhere: what all ranks hear of them.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::PlainToy;
using testing::same_bits;
using torch::kBFloat16;
using torch::Tensor;

TEST(GradientDtypeRanks, TorchTakesNone) {
  on_ranks(2, [](const Group& group) {
    torch::manual_seed(100 + group.rank());
    const auto module = std::make_shared<PlainToy>();
    announce(module->parameters(), kBFloat16);
    const Tensor before = module->fc1->weight.detach().clone();
    const ReducerOptions options{.strategy = Strategy::kTorch};
    expect_sentence([&] { DistributedDataParallel<PlainToy>(module, group, options); },
                    {"strategy torch", "BFloat16", "fc1.weight", "choose another strategy"});
    EXPECT_TRUE(same_bits(module->fc1->weight.detach(), before)) << "nothing was sent";
    announce(module->parameters(), torch::kFloat);
    EXPECT_NO_THROW((DistributedDataParallel<PlainToy>(module, group, options)));
  });
}

TEST(GradientDtypeRanks, RanksThatDisagreeAreNamed) {
  on_ranks(3, [](const Group& group) {
    const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
    if (group.rank() == 2) announce(parameters, kBFloat16);
    expect_sentence([&] { GradientReducer(parameters, group, {}, {"a"}); },
                    {"a of shape [5]", "Float on cpu on rank 0",
                     "Float with gradients of BFloat16 on cpu on rank 2"});
  });
}

std::vector<Case> late_cases() {
  std::vector<Case> cases = without_torch(common_cases());
  cases.push_back({"buckets in place", {.flat_buckets = false}});
  return cases;
}

// Announced after the reducer was made, on all ranks or one: all hear of it, and of a step that is
// refused nothing is left.
void expect_late_is_refused(const Group& group, const ReducerOptions& options, bool on_all,
                            bool in_first_step) {
  const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_(),
                                          torch::ones({3}).requires_grad_()};
  GradientReducer reducer(parameters, group, options, {"a", "b"});
  const auto step = [&] {
    for (const Tensor& parameter : parameters) parameter.mutable_grad().reset();
    (parameters[0].sum() + 2 * parameters[1].sum()).backward();
    reducer.finish_gradient_synchronization();
  };
  if (!in_first_step) {
    step();
    step();
  }
  if (on_all || group.rank() == 1) announce({parameters[1]}, kBFloat16);
  const std::string words =
      options.debug ? "with gradients of BFloat16" : "gradients of Float for b";
  expect_sentence(
      step, {options.debug && on_all ? "BFloat16" : words, on_all ? "on rank 0" : "on rank 1"});
  announce({parameters[1]}, torch::kFloat);
  step();
  EXPECT_TRUE(same_bits(parameters[0].grad(), torch::full({5}, 1.0)));
  EXPECT_TRUE(same_bits(parameters[1].grad(), torch::full({3}, 2.0)));
}

TEST(GradientDtypeRanks, LateAnnouncementsAreRefusedOnAll) {
  on_ranks(2, [](const Group& group) {
    for (const Case& c : late_cases()) {
      SCOPED_TRACE(c.name);
      for (const bool on_all : {true, false}) {
        expect_late_is_refused(group, c.options, on_all, /*in_first_step=*/true);
        // With unused ones ranks tell each other nothing at a later step's end.
        if (!c.options.allow_unused)
          expect_late_is_refused(group, c.options, on_all, /*in_first_step=*/false);
      }
    }
    expect_late_is_refused(group, {.debug = true}, /*on_all=*/false, /*in_first_step=*/false);
  });
}

// Where they do not, the rank that it is true of stops, and the others' means are no numbers.
TEST(GradientDtypeRanks, WhatOneRankCannotSendIsNoMean) {
  on_ranks(2, [](const Group& group) {
    const std::vector<Tensor> parameters = {torch::ones({5}).requires_grad_()};
    GradientReducer reducer(parameters, group, {.allow_unused = true}, {"a"});
    const auto step = [&] {
      parameters[0].mutable_grad().reset();
      parameters[0].sum().backward();
      reducer.finish_gradient_synchronization();
    };
    step();
    if (group.rank() == 1) {
      announce(parameters, kBFloat16);
      expect_sentence(step, {"gradients of Float for a", "BFloat16 on rank 1"});
    } else {
      step();
      EXPECT_TRUE(parameters[0].grad().isnan().all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace flashstep
