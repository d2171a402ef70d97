// State goes from the optimizer inside to archives and back whatever the options of each group.
#include "flashstep/parallel/optimizer_state.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/archives.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::archive_of;
using testing::load_archive;
using testing::same_bits;
using torch::Tensor;
using torch::optim::OptimizerParamGroup;

std::vector<Tensor> four_parameters() {
  torch::manual_seed(41);
  return {torch::randn({5, 3}).requires_grad_(), torch::randn({40}).requires_grad_(),
          torch::randn({4, 6}).t().requires_grad_(), torch::randn({9}).requires_grad_()};
}

// The first two in one group, the others in another.
template <typename Options>
std::vector<OptimizerParamGroup> groups_of(const std::vector<Tensor>& parameters,
                                           const Options& first, const Options& second) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{parameters[0], parameters[1]},
                      std::make_unique<Options>(first));
  groups.emplace_back(std::vector<Tensor>{parameters[2], parameters[3]},
                      std::make_unique<Options>(second));
  return groups;
}

void set_all_gradients(const std::vector<Tensor>& parameters, int step) {
  torch::manual_seed(2000 + step);
  for (const Tensor& parameter : parameters)
    parameter.mutable_grad() = torch::empty_like(parameter).normal_();
}

NamedTensors named(const std::vector<Tensor>& parameters) {
  NamedTensors result;
  for (size_t i = 0; i < parameters.size(); ++i) result.emplace_back(str("p", i), parameters[i]);
  return result;
}

void expect_equal_state(const NamedTensors& actual, const NamedTensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_TRUE(same_bits(actual[i].second, expected[i].second)) << actual[i].first;
    EXPECT_EQ(actual[i].second.strides(), expected[i].second.strides()) << actual[i].first;
  }
}

// Trained, consolidated on rank 0 and loaded into the whole optimizer and back. `change` may set
// other options when training is over.
template <typename Inner, typename Options>
void expect_round_trip(
    const Group& group, ShardMode mode, const Options& first, const Options& second,
    const std::function<void(torch::optim::Optimizer&)>& change = [](auto&) {}) {
  const auto own = four_parameters(), reference = four_parameters();
  const ShardOptions shards = {.mode = mode, .bucket_megabytes = 1e-4};
  ShardedOptimizer<Inner> sharded(groups_of(own, first, second), first, group, shards);
  Inner whole(groups_of(reference, first, second), first);
  for (int step = 0; step < 3; ++step) {
    set_all_gradients(own, step);
    set_all_gradients(reference, step);
    sharded.step();
    whole.step();
  }
  change(sharded);
  change(whole);
  sharded.consolidate(0);
  const std::string archive = group.broadcast(group.is_first() ? archive_of(sharded) : "");
  Inner restored(groups_of(reference, first, second), first);
  load_archive(restored, archive);
  expect_equal_state(read_state(restored, named(reference)), read_state(whole, named(reference)));

  const auto later = four_parameters();
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < later.size(); ++i) later[i].copy_(reference[i]);
  }
  ShardedOptimizer<Inner> again(groups_of(later, first, second), first, group, shards);
  load_archive(again, archive_of(whole));
  set_all_gradients(later, 9);
  set_all_gradients(reference, 9);
  again.step();
  whole.step();
  for (size_t i = 0; i < later.size(); ++i)
    EXPECT_TRUE(same_bits(later[i].detach(), reference[i].detach())) << i;
}

template <typename Inner, typename Options>
void expect_both_ways(const Group& group, const Options& plain, const Options& other) {
  for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
    SCOPED_TRACE(mode == ShardMode::kWhole ? "whole" : "flat");
    expect_round_trip<Inner>(group, mode, plain, other);
    expect_round_trip<Inner>(group, mode, other, plain);
    expect_round_trip<Inner>(group, mode, plain, plain);
  }
}

void expect_options_by_group(const Group& group) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  expect_both_ways<SGD>(group, SGDOptions(0.1), SGDOptions(0.1).momentum(0.9));
  expect_both_ways<Adam>(group, AdamOptions(0.01), AdamOptions(0.01).amsgrad(true));
  expect_both_ways<AdamW>(group, AdamWOptions(0.01), AdamWOptions(0.01).amsgrad(true));
  expect_both_ways<RMSprop>(group, RMSpropOptions(0.01),
                            RMSpropOptions(0.01).momentum(0.5).centered(true));
  // Momentum for all steps but the last ones: its state is there, and stays.
  const SGDOptions momentum = SGDOptions(0.1).momentum(0.9);
  for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
    expect_round_trip<SGD>(group, mode, momentum, momentum, [](Optimizer& optimizer) {
      for (OptimizerParamGroup& parameters : optimizer.param_groups())
        static_cast<SGDOptions&>(parameters.options()).momentum(0);
    });
  }
}

TEST(OptimizerState, OptionsMayDifferByGroup) {
  expect_options_by_group(Group(Environment()));
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      expect_options_by_group(Group(environment));
    });
  }
}

// The first is tied: torch's parameters() of a module names it twice.
std::vector<Tensor> with_repetition(std::vector<Tensor> parameters) {
  parameters.push_back(parameters.front());
  return parameters;
}

// Archives of the optimizer alone and of the sharded one, taken back by both.
template <typename Inner, typename Options>
void expect_repetitions_load(const Options& options) {
  const Group group{Environment()};
  const auto parameters = with_repetition(four_parameters());
  Inner whole(parameters, options), again(parameters, options);
  ShardedOptimizer<Inner> sharded(parameters, options, group);
  for (int step = 0; step < 2; ++step) {
    set_all_gradients(parameters, step);
    whole.step();
    sharded.step();
  }
  const NamedTensors distinct = named({parameters.begin(), parameters.end() - 1});
  load_repeated(again, [&] { load_archive(again, archive_of(whole)); });
  expect_equal_state(read_state(again, distinct), read_state(whole, distinct));
  EXPECT_EQ(again.state().size(), whole.state().size());
  EXPECT_TRUE(again.param_groups().front().params().back().is_same(parameters.front()));

  ShardedOptimizer<Inner> of_whole(parameters, options, group),
      of_sharded(parameters, options, group);
  load_archive(of_whole, archive_of(whole));
  expect_equal_state(read_state(of_whole.inner(), distinct), read_state(whole, distinct));
  sharded.consolidate(0);
  load_archive(of_sharded, archive_of(sharded));
  expect_equal_state(read_state(of_sharded.inner(), distinct),
                     read_state(sharded.inner(), distinct));
}

TEST(OptimizerState, AParameterMayBeNamedTwice) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  expect_repetitions_load<torch::optim::AdamW>(AdamWOptions(0.01).amsgrad(true));
  expect_repetitions_load<Adam>(AdamOptions(0.01));
  expect_repetitions_load<SGD>(SGDOptions(0.1).momentum(0.9));
  expect_repetitions_load<RMSprop>(RMSpropOptions(0.01));
  expect_repetitions_load<Adagrad>(AdagradOptions(0.01));
}

// Of another module, whose tied parameter is another one, as many in all: no state is lost in
// silence.
TEST(OptimizerState, AnArchiveThatRepeatsOtherPlacesIsRefused) {
  const torch::optim::AdamWOptions options(0.01);
  const Group group{Environment()};
  const auto parameters = four_parameters();
  const std::vector<Tensor> repeated = with_repetition(parameters);
  std::vector<Tensor> distinct = parameters;
  distinct.push_back(torch::randn({5, 3}).requires_grad_());
  torch::optim::AdamW of_repeated(repeated, options), of_distinct(distinct, options);
  set_all_gradients(distinct, 0);
  of_repeated.step();
  of_distinct.step();
  const std::vector<std::string> sentence = {"names a parameter twice", "elsewhere"};
  const auto refuses = [&](torch::optim::AdamW& optimizer, const std::string& archive) {
    testing::expect_sentence(
        [&] { load_repeated(optimizer, [&] { load_archive(optimizer, archive); }); }, sentence);
    for (const auto& [parameter, state] : optimizer.state()) EXPECT_NE(state, nullptr);
  };
  const auto sharded_refuses = [&](ShardedOptimizerBase& optimizer, const std::string& archive) {
    testing::expect_sentence([&] { load_archive(optimizer, archive); }, sentence);
  };
  ShardedOptimizer<torch::optim::AdamW> sharded_repeated(repeated, options, group),
      sharded_distinct(distinct, options, group);
  refuses(of_repeated, archive_of(of_distinct));
  sharded_refuses(sharded_repeated, archive_of(of_distinct));
  const std::string archive = archive_of(of_repeated);
  refuses(of_distinct, archive);
  sharded_refuses(sharded_distinct, archive);
}

}  // namespace
}  // namespace flashstep
