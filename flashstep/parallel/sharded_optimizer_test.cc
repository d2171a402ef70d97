// An optimizer divided between ranks does what the whole one does, bit for bit.
#include "flashstep/sharded_optimizer.h"

#include <algorithm>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/archives.h"

namespace flashstep {
namespace {

using testing::archive_of;
using testing::load_archive;
using testing::same_bits;
using torch::Tensor;
using torch::optim::OptimizerParamGroup;

std::vector<Tensor> small_parameters() { return make_parameters({3, 50, 7, 20, 1, 33}); }

std::vector<OptimizerParamGroup> two_groups(const std::vector<Tensor>& parameters,
                                            const torch::optim::AdamWOptions& options) {
  const auto middle = parameters.begin() + 4;
  auto other = std::make_unique<torch::optim::AdamWOptions>(options);
  other->lr(0.02).weight_decay(0);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>(parameters.begin(), middle));
  std::vector<Tensor> rest(middle, parameters.end());
  groups.emplace_back(rest, std::move(other));
  return groups;
}

ShardOptions small_shards(ShardMode mode) {
  return {.mode = mode, .bucket_megabytes = 0.0003, .part_megabytes = 0.0002};
}

// Each rank has state for its own parameters only, and all for all.
void expect_balanced(const ShardedOptimizer<torch::optim::AdamW>& sharded,
                     const std::vector<Tensor>& all, const Group& group) {
  size_t states = 0;
  int64_t elements = 0;
  for (const Tensor& parameter : all) {
    const bool is_own = sharded.owner(parameter) == group.rank();
    const bool has_state = sharded.inner().state().count(parameter.unsafeGetTensorImpl()) > 0;
    EXPECT_EQ(has_state, is_own && parameter.requires_grad());
    states += has_state;
    if (is_own && parameter.requires_grad()) elements += parameter.numel();
  }
  EXPECT_EQ(group.all_reduce(static_cast<int64_t>(states), Reduce::kSum),
            static_cast<int64_t>(all.size()) - 1);
  EXPECT_EQ(sharded.elements_by_rank()[group.rank()], elements);
  // Greedy is within 4/3 of the best, which is at least the mean and at least the largest (100).
  const double mean = 261.0 / group.world_size();
  EXPECT_LE((sharded.imbalance() + 1) * mean, 4.0 / 3 * std::max(100.0, mean));
}

// Each rank has state for its own elements only, and no rank has much more than others.
void expect_equal_parts(const ShardedOptimizer<torch::optim::AdamW>& sharded,
                        const std::vector<Tensor>& all, const Group& group) {
  int64_t elements = 0;
  for (const auto& inner_group : sharded.inner().param_groups()) {
    for (const Tensor& piece : inner_group.params()) {
      EXPECT_EQ(sharded.inner().state().count(piece.unsafeGetTensorImpl()), 1u);
      elements += piece.numel();
    }
  }
  EXPECT_EQ(sharded.elements_by_rank()[group.rank()], elements);
  int64_t trained = 0;
  for (const Tensor& parameter : all) trained += parameter.requires_grad() ? parameter.numel() : 0;
  EXPECT_EQ(group.all_reduce(elements, Reduce::kSum), trained);
}

void expect_whole(const Group& group, ShardMode mode) {
  const torch::optim::AdamWOptions options(0.01);
  const auto own = small_parameters(), reference = small_parameters();
  ShardedOptimizer<torch::optim::AdamW> sharded(two_groups(own, options), options, group,
                                                small_shards(mode));
  torch::optim::AdamW whole(two_groups(reference, options), options);
  torch::optim::StepLR sharded_schedule(sharded, 2, 0.5), whole_schedule(whole, 2, 0.5);
  const auto late = torch::full({9}, 1.0).requires_grad_();
  const auto late_reference = late.detach().clone().requires_grad_();
  auto all = own, all_reference = reference;
  for (int step = 0; step < 5; ++step) {
    if (step == 3) {
      sharded.add_param_group(OptimizerParamGroup(std::vector<Tensor>{late}));
      whole.add_param_group(OptimizerParamGroup(std::vector<Tensor>{late_reference}));
      all.push_back(late);
      all_reference.push_back(late_reference);
    }
    set_gradients(all, step);
    set_gradients(all_reference, step);
    int calls = 0;
    const Tensor loss = sharded.step([&] {
      ++calls;
      return torch::full({}, 5.0);
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(loss.item<float>(), 5);
    whole.step();
    sharded_schedule.step();
    whole_schedule.step();
    expect_same_bits(all, all_reference);
  }
  if (mode == ShardMode::kWhole) {
    expect_balanced(sharded, all, group);
  } else {
    expect_equal_parts(sharded, all, group);
  }
  EXPECT_EQ(sharded.owner(torch::zeros({1})), -1);

  // Consolidated, it is the whole optimizer's: loaded into one, both go on alike.
  EXPECT_THROW(archive_of(sharded), UserError);
  sharded.consolidate(group.world_size() - 1);
  std::string archive;
  if (group.rank() == group.world_size() - 1) {
    archive = archive_of(sharded);
  } else {
    EXPECT_THROW(archive_of(sharded), UserError);
  }
  archive = group.broadcast(archive, group.world_size() - 1);
  torch::optim::AdamW restored(whole.param_groups(), options);
  load_archive(restored, archive);
  ASSERT_EQ(restored.state().size(), whole.state().size());
  for (const auto& [key, state] : whole.state()) {
    const auto& before = static_cast<const torch::optim::AdamWParamState&>(*state);
    const auto& after =
        static_cast<const torch::optim::AdamWParamState&>(*restored.state().at(key));
    EXPECT_EQ(after.step(), before.step());
    EXPECT_TRUE(same_bits(after.exp_avg(), before.exp_avg()));
    EXPECT_TRUE(same_bits(after.exp_avg_sq(), before.exp_avg_sq()));
  }
  // And back: what the whole one saved goes on in shards.
  const auto resumed = [&] {
    std::vector<Tensor> copies;
    for (const Tensor& p : all)
      copies.push_back(p.detach().clone().requires_grad_(p.requires_grad()));
    return copies;
  }();
  auto groups = two_groups({resumed.begin(), resumed.end() - 1}, options);
  groups.emplace_back(std::vector<Tensor>{resumed.back()});
  ShardedOptimizer<torch::optim::AdamW> again(groups, options, group, small_shards(mode));
  load_archive(again, archive_of(whole));
  set_gradients(resumed, 9);
  set_gradients(all_reference, 9);
  again.step();
  whole.step();
  expect_same_bits(resumed, all_reference);
}

TEST(Ranks, ShardedIsWhole) {
  on_ranks({2, 3, 4}, [](const Group& group) {
    expect_whole(group, ShardMode::kWhole);
    expect_whole(group, ShardMode::kFlat);
  });
}

TEST(Ranks, OneProcess) {
  expect_whole(Group(Environment()), ShardMode::kWhole);
  expect_whole(Group(Environment()), ShardMode::kFlat);
}

template <typename Inner, typename Options>
void expect_small_is_whole(const Group& group, ShardMode mode, const Options& options) {
  expect_sharded_is_whole<Inner>(group, small_parameters(), small_parameters(), options,
                                 small_shards(mode));
}

TEST(Ranks, AnyOptimizerThatUpdatesEachParameterAlone) {
  on_ranks(2, [](const Group& group) {
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      using namespace torch::optim;
      expect_small_is_whole<SGD>(group, mode, sgd_of({}));
      expect_small_is_whole<AdamW>(group, mode, AdamWOptions(0.01));
      expect_small_is_whole<Adam>(group, mode, AdamOptions(0.01).amsgrad(true));
      expect_small_is_whole<RMSprop>(group, mode, RMSpropOptions(0.01));
      expect_small_is_whole<Adagrad>(group, mode, AdagradOptions(0.01));
    }
    expect_sharded_is_whole<torch::optim::SGD>(group, small_parameters(), small_parameters(),
                                               sgd_of({}), small_shards(ShardMode::kWhole),
                                               /*moves=*/true);
    EXPECT_THROW((ShardedOptimizer<torch::optim::LBFGS>(small_parameters(),
                                                        torch::optim::LBFGSOptions(1), group)),
                 UserError);
    // Two tensors over one memory: flat shards would part them.
    const Tensor memory = torch::zeros({8});
    const std::vector<Tensor> overlapping = {memory.slice(0, 0, 6).detach().requires_grad_(),
                                             memory.slice(0, 2, 8).detach().requires_grad_()};
    EXPECT_THROW((ShardedOptimizer<torch::optim::SGD>(overlapping, torch::optim::SGDOptions(0.1),
                                                      group, small_shards(ShardMode::kFlat))),
                 UserError);
  });
}

// Saved by 3 ranks, taken up by 2.
TEST(Ranks, AnotherNumberOfRanksGoesOn) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / str("flashstep_sharded_", ::getppid(), ".pt");
  const auto run = [&](const Group& group, ShardMode mode, int first, int last, bool load) {
    const torch::optim::AdamWOptions options(0.01);
    const auto own = small_parameters();
    ShardedOptimizer<torch::optim::AdamW> sharded(own, options, group, small_shards(mode));
    const auto reference = small_parameters();
    torch::optim::AdamW whole(reference, options);
    for (int step = 0; step < first; ++step) {
      set_gradients(reference, step);
      whole.step();
    }
    if (load) {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < own.size(); ++i) own[i].copy_(reference[i]);
      load_archive(sharded, read_file(file));
    }
    for (int step = first; step < last; ++step) {
      set_gradients(own, step);
      set_gradients(reference, step);
      sharded.step();
      whole.step();
    }
    expect_same_bits(own, reference);
    sharded.consolidate();
    if (group.is_first() && !load) write_file(file, archive_of(sharded));
  };
  for (const ShardMode before : {ShardMode::kWhole, ShardMode::kFlat}) {
    const ShardMode after = before == ShardMode::kWhole ? ShardMode::kFlat : ShardMode::kWhole;
    testing::run_ranks(3, [&](const Environment& environment) {
      run(Group(environment), before, 0, 3, /*load=*/false);
    });
    testing::run_ranks(2, [&](const Environment& environment) {
      run(Group(environment), after, 3, 5, /*load=*/true);
      if (environment.rank == 0) std::filesystem::remove(file);
    });
  }
}

}  // namespace
}  // namespace flashstep
