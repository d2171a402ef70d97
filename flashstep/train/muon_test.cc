// AdamW whose groups have MuonOptions: alone, on ranks, in archives and checkpoints.
#include "flashstep/ops/muon.h"

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/checkpoint.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

struct Mixed : torch::nn::Module {
  std::vector<Tensor> matrices, others;

  Mixed() {
    torch::manual_seed(3);
    for (int i = 0; i < 5; ++i)
      matrices.push_back(register_parameter(str("m", i), torch::randn({12 + i % 2, 9})));
    others.push_back(register_parameter("words", torch::randn({7, 9})));
    others.push_back(register_parameter("gain", torch::randn({9})));
  }
  void set_gradients(int step) {
    torch::manual_seed(100 + step);
    for (Tensor& parameter : parameters()) parameter.mutable_grad() = torch::randn_like(parameter);
  }
  std::vector<OptimizerParamGroup> groups(double rate = 0.02) const {
    auto muon = std::make_unique<MuonOptions>(rate);
    muon->momentum(0.9).weight_decay(0.3);
    return {{matrices, std::move(muon)}, {others, std::make_unique<AdamWOptions>(0.01)}};
  }
};

template <typename Optimizer>
void train(Mixed& net, Optimizer& optimizer, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    net.set_gradients(step);
    optimizer.step();
  }
}

void expect_same(const Mixed& a, const Mixed& b) {
  const auto left = a.named_parameters(), right = b.named_parameters();
  for (const auto& item : left)
    EXPECT_TRUE(same_bits(item.value().detach(), right[item.key()].detach())) << item.key();
}

TEST(Muon, UpdatesItsGroupsAndAdamWTheOthers) {
  Mixed net, alone;
  AdamW optimizer(net.groups(), AdamWOptions(0.01));
  AdamW adamw(alone.others, AdamWOptions(0.01));
  train(net, optimizer, 0, 3);

  MuonTensors tensors;
  for (const Tensor& parameter : alone.matrices) {
    tensors.parameters.push_back(parameter.detach());
    tensors.momenta.push_back(torch::zeros_like(parameter).detach());
    tensors.steps.push_back(torch::zeros({}));
  }
  MuonSettings settings;
  settings.learning_rate = torch::full({}, 0.02);
  settings.momentum = 0.9;
  settings.weight_decay = 0.3;
  for (int step = 0; step < 3; ++step) {
    alone.set_gradients(step);
    tensors.gradients.clear();
    for (const Tensor& parameter : alone.matrices) tensors.gradients.push_back(parameter.grad());
    muon(tensors, settings);
    adamw.step();
  }
  expect_same(net, alone);
  const auto& state =
      static_cast<const AdamWState&>(*optimizer.state().at(net.matrices[0].unsafeGetTensorImpl()));
  EXPECT_EQ(state.step.item<float>(), 3);
  EXPECT_FALSE(state.exp_avg_sq.defined()) << "half of AdamW's memory";
}

TEST(Muon, ClipsInPassingAndSkips) {
  Mixed net, clipped;
  AdamW optimizer(net.groups(), AdamWOptions(0.01)), other(clipped.groups(), AdamWOptions(0.01));
  net.set_gradients(0);
  clipped.set_gradients(0);
  const auto gradients = gradients_of(optimizer);
  const Clipping clipping{global_norm(optimizer, gradients), 0.5};
  optimizer.step_clipped_unless(torch::zeros({}), clipping, gradients);
  clip_grad_norm(other, 0.5);
  other.step();
  for (size_t i = 0; i < net.matrices.size(); ++i)
    EXPECT_TRUE(torch::allclose(net.matrices[i], clipped.matrices[i], 1e-5, 1e-6)) << i;
  const Tensor before = net.matrices[0].detach().clone();
  optimizer.step_unless(torch::ones({}));
  EXPECT_TRUE(same_bits(net.matrices[0].detach(), before));
}

// A tensor in two groups is updated, kept and read as the first says.
TEST(Muon, TheFirstGroupThatNamesATensorDecides) {
  for (const bool is_muon : {false, true}) {
    const auto make = [&](const Tensor& tied, const Tensor& other) {
      std::vector<OptimizerParamGroup> groups = {
          {{tied}, std::make_unique<AdamWOptions>(0.01)},
          {{tied, other}, std::make_unique<MuonOptions>(0.02)}};
      if (is_muon) std::swap(groups[0], groups[1]);
      return AdamW(std::move(groups), AdamWOptions(0.01));
    };
    const auto tensor = [] { return torch::randn({6, 4}).requires_grad_(); };
    const Tensor tied = tensor(), other = tensor();
    AdamW optimizer = make(tied, other);
    for (const Tensor& parameter : {tied, other})
      parameter.mutable_grad() = torch::randn_like(parameter);
    optimizer.step();
    const NamedTensors names = {{"tied", tied}, {"other", other}};
    const NamedTensors state = optimizer_state(optimizer, names);
    EXPECT_EQ(state.size(), is_muon ? 4u : 5u);
    AdamW again = make(tied, other), unpacked = make(tied, other);
    load_optimizer_state(again, names, state);
    EXPECT_EQ(optimizer_state(again, names).size(), state.size());
    std::stringstream bytes;
    torch::save(optimizer, bytes);
    torch::load(unpacked, bytes);
    EXPECT_EQ(optimizer_state(unpacked, names).size(), state.size());
  }
}

TEST(Muon, GoesOnFromAnArchive) {
  Mixed net, other;
  AdamW optimizer(net.groups(), AdamWOptions(0.01));
  train(net, optimizer, 0, 2);
  std::stringstream bytes;
  torch::save(optimizer, bytes);
  const std::string saved = bytes.str();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : net.named_parameters())
      other.named_parameters()[item.key()].copy_(item.value());
  }
  AdamW again(other.groups(/*rate=*/7), AdamWOptions(0.01));
  torch::load(again, bytes);
  const auto* const options = dynamic_cast<const MuonOptions*>(&again.param_groups()[0].options());
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->momentum(), 0.9);
  EXPECT_EQ(options->lr(), 0.02);
  EXPECT_EQ(dynamic_cast<const MuonOptions*>(&again.param_groups()[1].options()), nullptr);
  train(net, optimizer, 2, 4);
  train(other, again, 2, 4);
  expect_same(net, other);
  // Its state does not do for AdamW.
  Mixed third;
  AdamW adamw({OptimizerParamGroup(third.matrices), OptimizerParamGroup(third.others)},
              AdamWOptions(0.01));
  std::stringstream once_more(saved);
  testing::expect_sentence([&] { torch::load(adamw, once_more); },
                           {"expected an archive with exp_avg_sq", "got one without"});
}

// And has the options that it had, where one is refused.
TEST(Muon, RefusesTheArchiveOfAdamW) {
  Mixed net, other;
  AdamW adamw({OptimizerParamGroup(net.matrices), OptimizerParamGroup(net.others)},
              AdamWOptions(0.01));
  train(net, adamw, 0, 1);
  std::stringstream bytes;
  torch::save(adamw, bytes);
  AdamW optimizer(other.groups(), AdamWOptions(0.01));
  testing::expect_sentence([&] { torch::load(optimizer, bytes); },
                           {"expected an archive with MuonOptions in group 0", "AdamWOptions"});
  const auto* const options =
      dynamic_cast<const MuonOptions*>(&optimizer.param_groups()[0].options());
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->momentum(), 0.9);
  EXPECT_EQ(options->iterations(), 5);
}

TEST(Muon, OptionsAreKeptHoweverTheyAreGiven) {
  const auto copied = std::make_unique<MuonOptions>(
      MuonOptions(0.02).momentum(0.8).iterations(4).weight_decay(0.3));
  EXPECT_EQ(copied->momentum(), 0.8);
  EXPECT_EQ(copied->iterations(), 4);
  EXPECT_EQ(copied->weight_decay(), 0.3);
  Mixed net, other;
  AdamW by_default(net.matrices, MuonOptions(0.02).momentum(0.9));
  auto options = std::make_unique<MuonOptions>(0.02);
  options->momentum(0.9);
  AdamW by_group({{other.matrices, std::move(options)}}, AdamWOptions(0.01));
  train(net, by_default, 0, 2);
  train(other, by_group, 0, 2);
  expect_same(net, other);
}

TEST(Muon, UpdatesWhatHasAGradient) {
  Mixed net;
  net.matrices[1].set_requires_grad(false);
  AdamW optimizer(net.groups(), AdamWOptions(0.01));
  optimizer.allocate_state();
  EXPECT_EQ(optimizer.state().size(), net.parameters().size() - 1);
  net.set_gradients(0);
  net.matrices[1].mutable_grad().reset();
  net.matrices[2].mutable_grad().reset();
  const Tensor frozen = net.matrices[1].detach().clone(), idle = net.matrices[2].detach().clone(),
               trained = net.matrices[3].detach().clone();
  optimizer.step();
  EXPECT_TRUE(same_bits(net.matrices[1].detach(), frozen));
  EXPECT_TRUE(same_bits(net.matrices[2].detach(), idle));
  EXPECT_FALSE(net.matrices[3].detach().equal(trained));
}

// As one process's, which goes on from it; with the state of vectors beside that of matrices.
TEST(Muon, RanksConsolidateItsState) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    Mixed net, alone;
    ShardedAdamW optimizer(net.groups(), AdamWOptions(0.01), group,
                           {.part_megabytes = 0.0005});  // several parts
    train(net, optimizer, 0, 2);
    optimizer.consolidate(0);
    if (environment.rank == 0) {
      std::stringstream bytes;
      torch::save(optimizer, bytes);
      AdamW whole(alone.groups(), AdamWOptions(0.01));
      torch::load(whole, bytes);
      const NamedTensors names = {{"m", alone.matrices[0]}, {"gain", alone.others[1]}};
      EXPECT_EQ(optimizer_state(whole, names).size(), 2u + 3u);
    }
    group.barrier();
  });
}

// Of another number of ranks, too: 2 wrote what 3 read.
TEST(Muon, RanksDivideItsMatricesAndGoOn) {
  const bool is_rank = testing::internal::call_of_rank() >= 0;  // which runs this test, too
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       str("flashstep_muon_", is_rank ? ::getppid() : ::getpid());
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [&](const Environment& environment) {
      const Group group(environment);
      const int begin = world_size == 2 ? 0 : 2;
      const auto held = std::make_shared<Mixed>();
      Mixed &net = *held, alone;
      DistributedDataParallel<Mixed> model(held, group);
      ShardedAdamW optimizer(net.groups(), AdamWOptions(0.01), group);
      AdamW whole(alone.groups(), AdamWOptions(0.01));
      if (begin > 0) {
        EXPECT_EQ(load_if_exists(folder, model, optimizer), begin);
        train(alone, whole, 0, begin);
      }
      train(net, optimizer, begin, begin + 2);
      train(alone, whole, begin, begin + 2);
      for (size_t i = 0; i < net.matrices.size(); ++i)
        EXPECT_TRUE(torch::allclose(net.matrices[i], alone.matrices[i], 1e-4, 1e-5)) << i;
      save(folder, model, optimizer, begin + 2);
    });
  }
  std::filesystem::remove_all(folder);
}

TEST(Muon, ACheckpointKnowsItsGroups) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str("flashstep_muon_groups_", ::getpid());
  std::filesystem::remove_all(folder);
  Mixed net, other;
  AdamW optimizer(net.groups(), AdamWOptions(0.01));
  train(net, optimizer, 0, 2);
  save(folder, net, optimizer, 2);
  AdamW again(other.groups(7), AdamWOptions(1));
  EXPECT_EQ(load_if_exists(folder, other, again), 2);
  train(net, optimizer, 2, 4);
  train(other, again, 2, 4);
  expect_same(net, other);
  AdamW adamw({OptimizerParamGroup(other.matrices), OptimizerParamGroup(other.others)},
              AdamWOptions(0.01));
  testing::expect_sentence([&] { load_if_exists(folder, other, adamw); },
                           {"expected MuonOptions in group 0", "got AdamWOptions"});
  std::filesystem::remove_all(folder);
}

TEST(Muon, KeepsItsMomentumInBFloat16) {
  Mixed net;
  AdamW optimizer(net.groups(), AdamWOptions(0.01));
  optimizer.keep_moments_in(at::kBFloat16);
  train(net, optimizer, 0, 2);
  const NamedTensors names = {{"m", net.matrices[0]}};
  for (const auto& [name, tensor] : optimizer_state(optimizer, names)) {
    EXPECT_EQ(tensor.scalar_type(), name == "m/step" ? at::kFloat : at::kBFloat16) << name;
    EXPECT_NE(name, "m/exp_avg_sq");
  }
}

TEST(Muon, RefusesWhatItCannotUpdate) {
  Mixed net;
  const auto refuses = [&](std::vector<Tensor> parameters, std::unique_ptr<MuonOptions> options,
                           const std::vector<std::string>& sentence) {
    testing::expect_sentence(
        [&] {
          AdamW({{parameters, std::move(options)}}, AdamWOptions(0.01));
        },
        sentence);
  };
  const auto options = [](const auto& change) {
    auto made = std::make_unique<MuonOptions>(0.01);
    change(*made);
    return made;
  };
  const auto nothing = [](MuonOptions&) {};
  refuses(net.others, options(nothing), {"[Muon] expected whole matrices", "[9]"});
  refuses(net.matrices, options([](MuonOptions& o) { o.momentum(1); }), {"momentum in [0, 1)"});
  refuses(net.matrices, options([](MuonOptions& o) { o.iterations(0); }), {"1 iteration"});
  refuses(net.matrices, options([](MuonOptions& o) { o.amsgrad(true); }), {"no amsgrad"});
  refuses(net.matrices, options([](MuonOptions& o) { o.lr(-1); }), {"learning rate"});
}

TEST(Muon, RefusesPiecesOfMatrices) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    Mixed net;
    testing::expect_sentence(
        [&] { ShardedAdamW(net.groups(), AdamWOptions(0.01), group, {.mode = ShardMode::kFlat}); },
        {"[Muon] expected whole matrices"});
    const auto divided = std::make_shared<Mixed>();
    const FullyShardedDataParallel<Mixed> sharded(divided, group);
    testing::expect_sentence([&] { AdamW(divided->groups(), AdamWOptions(0.01)); }, {"[Muon]"});
  });
}

}  // namespace
}  // namespace flashstep
