// Values that shards are given from outside, and moved ones; and what a forward that fails says of
// the units.

#include <sstream>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "flashstep/parallel/test_hard_net.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::run_ranks;
using testing::same_bits;
using torch::Tensor;

using Model = FullyShardedDataParallel<HardNet>;

void step(Model& model) {
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
  const Tensor ids = rows_of_rank(ids_of(0), model.group());
  loss_of_logits(model(ids), ids).backward();
  sgd.step();
  sgd.zero_grad();
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i].second, b[i].second));
}

// Also where a forward without a backward has left units whole.
TEST(GivenShards, LoadedWholesCountAfterAForwardAlone) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const bool reshard : {true, false}) {
      Model model(make_hard_net(), group, {.reshard_after_forward = reshard});
      auto whole = model.gather_full_parameters();
      const Tensor ids = rows_of_rank(ids_of(0), group);
      const Tensor before = model(ids).detach();  // with gradients, as a check of shapes makes it
      for (auto& [name, tensor] : whole) tensor = tensor + 0.5;
      model.load_full_parameters(whole);
      expect_same(model.gather_full_parameters(), whole);
      Model loaded(make_hard_net(), group);
      loaded.load_full_parameters(whole);
      const Tensor after = model(ids);
      EXPECT_TRUE(same_bits(after.detach(), loaded(ids).detach()));
      EXPECT_FALSE(same_bits(after.detach(), before));
      loss_of_logits(after, ids).backward();
    }
  });
}

TEST(GivenShards, RanksHoldTheirMemoryInOneOrder) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    if (group.rank() == 1) net->words.set_data(net->words.t().contiguous().t());
    expect_sentence([&] { Model(net, group); }, {"words", "strides [5, 1]", "strides [1, 11]"});
  });
}

TEST(GivenShards, TorchLoadsWhatItSaved) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    Model model(net, group);
    step(model);
    const auto before = model.gather_full_parameters();
    std::stringstream file;
    {
      torch::serialize::OutputArchive archive;
      net->save(archive);
      archive.save_to(file);
    }
    const auto load = [&] {
      file.clear(), file.seekg(0);
      torch::serialize::InputArchive archive;
      archive.load_from(file);
      net->load(archive);  // gives parameters new memory
    };
    step(model);
    const auto later = model.gather_full_parameters();
    load();
    expect_same(model.gather_full_parameters(), before);
    step(model);
    expect_same(model.gather_full_parameters(), later);
    // An update comes before the forward; whole values replace what was given.
    load();
    for (const Tensor& parameter : model.parameters()) parameter.detach().add_(1);
    const auto more = model.gather_full_parameters();
    for (size_t i = 0; i < more.size(); ++i)
      EXPECT_TRUE(same_bits(more[i].second, before[i].second + 1));
    load();
    model.load_full_parameters(later);
    expect_same(model.gather_full_parameters(), later);
  });
}

TEST(GivenShards, OfAnotherKindAreRefused) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    Model model(net, group);
    step(model);
    const Tensor shard = net->words.detach();
    const Tensor ids = rows_of_rank(ids_of(0), group);
    net->to(torch::kDouble);
    const std::vector<std::string> words = {"blocks.0.gain", "Double", "before wrapping",
                                            "load_full_parameters()"};
    expect_sentence([&] { model(ids); }, words);
    expect_sentence([&] { model.gather_full_parameters(); }, words);
    EXPECT_EQ(net->words.scalar_type(), torch::kDouble) << "nothing was thrown away";
    net->to(torch::kFloat);
    step(model);
    net->words.set_data(torch::zeros({kNetWords, kNetWidth}));
    expect_sentence([&] { model(ids); }, {"words", "[11, 5]"});
    net->words.set_data(shard.clone());
    // Its whole tensor, between forward and backward, is no place for values either.
    const Tensor y = model(ids);
    const Tensor whole = net->words.detach();
    net->words.set_data(whole.clone());
    expect_sentence([&] { model(ids); }, {"words", "given other values"});
    model.forget_step();
    step(model);
  });
}

TEST(GivenShards, AnInnocentUnitIsNotAccused) {
  struct Net : torch::nn::Module {
    torch::nn::Linear in{register_module("in", torch::nn::Linear(7, 7))};
    torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
    Net() {
      for (int i = 0; i < 2; ++i) blocks->push_back(torch::nn::Linear(7, 7));
    }
    // Of a weight past run(): what autograd has met.
    bool is_past = false;
    Tensor twice;
    Tensor forward(Tensor x) {
      x = in(x);
      if (is_past) {
        twice = blocks[1]->as<torch::nn::LinearImpl>()->weight * 2;
        x = x.matmul(twice);
      }
      for (int i = 0; i < 2; ++i) x = run(*blocks[i]->as<torch::nn::LinearImpl>(), x);
      return x;
    }
  };
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<Net>();
    FullyShardedDataParallel model(net, group);
    try {
      model(torch::ones({4, 9}));
      ADD_FAILURE() << "nothing was said";
    } catch (const UserError& error) {
      const std::string sentence = error.what();
      EXPECT_NE(sentence.find("4x9 and 7x7"), std::string::npos) << sentence;
      EXPECT_NE(sentence.find("(should it come from one of blocks.0, blocks.1:"), std::string::npos)
          << sentence;
      EXPECT_EQ(sentence.find("not called"), std::string::npos) << sentence;
    }
    net->is_past = true;
    expect_sentence([&] { model(torch::ones({4, 7})); }, {"and so not whole: blocks.1)"});
  });
}

}  // namespace
}  // namespace flashstep
