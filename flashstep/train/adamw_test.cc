#include <cmath>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/optim.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using torch::Tensor;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

// With these two headers alone flat shards take it.
static_assert(updates_each_element_alone<AdamW>);

const std::vector<std::vector<int64_t>> kShapes = {{7, 5}, {1}, {33}, {2, 3, 4}, {}};

std::vector<Tensor> make_parameters(torch::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(3);
  std::vector<Tensor> parameters;
  for (const auto& shape : kShapes) {
    parameters.push_back(torch::randn(shape, torch::TensorOptions(dtype)).requires_grad_());
  }
  return parameters;
}

void set_gradients(std::vector<Tensor>& parameters, int step) {
  torch::manual_seed(100 + step);
  for (Tensor& parameter : parameters) parameter.mutable_grad() = torch::randn_like(parameter);
}

double worst_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = (a[i].detach() - b[i].detach()).abs().max().item<double>();
    if (!(difference <= worst)) worst = difference;  // NaN stays
  }
  return worst;
}

AdamWOptions options(bool amsgrad = false) {
  return AdamWOptions(1e-2).betas({0.8, 0.97}).eps(1e-7).weight_decay(0.1).amsgrad(amsgrad);
}

class Equality : public ::testing::TestWithParam<bool> {};

// In float64 the two differ by the order of a few roundings, of numbers below 4.
TEST_P(Equality, WithTorchInFloat64) {
  auto ours = make_parameters(torch::kDouble), theirs = make_parameters(torch::kDouble);
  AdamW optimizer(ours, options(GetParam()));
  torch::optim::AdamW peer(theirs, options(GetParam()));
  for (int step = 0; step < 50; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    optimizer.step();
    peer.step();
  }
  EXPECT_LE(worst_difference(ours, theirs), 50 * 4e-15);
  EXPECT_GT(worst_difference(ours, make_parameters(torch::kDouble)), 0.05);
}
INSTANTIATE_TEST_SUITE_P(Amsgrad, Equality, ::testing::Bool());

TEST(AdamW, GroupsHaveOptionsOfTheirOwnAndFollowSchedulers) {
  auto ours = make_parameters(torch::kDouble), theirs = make_parameters(torch::kDouble);
  const auto groups = [](std::vector<Tensor>& p) {
    std::vector<OptimizerParamGroup> result;
    result.emplace_back(std::vector<Tensor>{p[0], p[1]},
                        std::make_unique<AdamWOptions>(AdamWOptions(3e-2).weight_decay(0)));
    result.emplace_back(std::vector<Tensor>{p[2], p[3], p[4]});
    return result;
  };
  AdamW optimizer(groups(ours), options());
  torch::optim::AdamW peer(groups(theirs), options());
  for (int step = 0; step < 10; ++step) {
    for (auto* each : {static_cast<torch::optim::Optimizer*>(&optimizer),
                       static_cast<torch::optim::Optimizer*>(&peer)}) {
      each->param_groups()[1].options().set_lr(1e-2 / (1 + step));
    }
    set_gradients(ours, step);
    set_gradients(theirs, step);
    optimizer.step();
    peer.step();
  }
  EXPECT_LE(worst_difference(ours, theirs), 10 * 4e-15);
}

TEST(AdamW, LeavesParametersWithoutGradientAlone) {
  auto parameters = make_parameters();
  parameters[1].set_requires_grad(false);
  set_gradients(parameters, 0);
  parameters[1].mutable_grad() = Tensor();
  parameters[3].mutable_grad() = Tensor();
  const Tensor frozen = parameters[1].clone(), unused = parameters[3].detach().clone();
  AdamW optimizer(parameters, options());
  optimizer.step();
  EXPECT_TRUE(parameters[1].equal(frozen));
  EXPECT_TRUE(parameters[3].equal(unused));
  EXPECT_EQ(optimizer.state().size(), 3u);
}

// LibTorch's parameters() has a tied tensor as often as the module names it.
TEST(AdamW, UpdatesATiedParameterOnce) {
  testing::TiedToy tied;
  std::vector<Tensor> parameters = tied.parameters(), once;
  ASSERT_EQ(parameters.size(), 5u);
  ASSERT_TRUE(parameters[1].is_same(parameters[3]));
  for (const size_t i : {0, 1, 2, 4}) {
    once.push_back(parameters[i].detach().clone().set_requires_grad(true));
  }
  std::vector<OptimizerParamGroup> groups;  // the second and the fourth are the same
  groups.emplace_back(std::vector<Tensor>{parameters[0], parameters[1], parameters[2]});
  groups.emplace_back(std::vector<Tensor>{parameters[3], parameters[4]});
  for (const bool in_one_group : {true, false}) {
    std::vector<Tensor> ours, theirs;
    for (const Tensor& parameter : once) theirs.push_back(parameter.detach().clone());
    for (size_t i = 0; i < 4; ++i) parameters[i < 3 ? i : 4].detach().copy_(theirs[i]);
    AdamW optimizer = in_one_group ? AdamW(parameters, options()) : AdamW(groups, options());
    AdamW peer(theirs, options());
    for (int step = 0; step < 3; ++step) {
      ours = {parameters[0], parameters[1], parameters[2], parameters[4]};
      set_gradients(ours, step);
      set_gradients(theirs, step);
      optimizer.step();
      peer.step();
    }
    EXPECT_EQ(worst_difference(ours, theirs), 0);
    const NamedTensors state = optimizer_state(optimizer, {{"w", parameters[3]}});
    ASSERT_EQ(state.size(), 3u);
    EXPECT_EQ(state[2].second.item<float>(), 3) << state[2].first;
  }
}

// A write that leaves no trace tells a copy that the optimizer keeps from one that every use makes.
TEST(AdamW, WritesTheCopiesThatProductsRead) {
  for (const bool amsgrad : {false, true}) {  // by a kernel, and by tensor operations
    const Tensor weight = torch::randn({6, 4}).requires_grad_();
    compute_copy(weight, at::kBFloat16);
    AdamW optimizer({weight}, options().amsgrad(amsgrad));
    for (int step = 0; step < 2; ++step) {
      weight.mutable_grad() = torch::randn_like(weight);
      optimizer.step();
      const Tensor updated = weight.detach().to(at::kBFloat16);
      weight.data().zero_();
      EXPECT_TRUE(compute_copy(weight, at::kBFloat16).equal(updated));
    }
    forget_compute_copies();
  }
}

TEST(AdamW, SkipsOnTheDeviceWhenToldSo) {
  auto parameters = make_parameters();
  AdamW optimizer(parameters, options());
  set_gradients(parameters, 0);
  optimizer.step();
  const NamedTensors names = {{"w", parameters[0]}};
  const Tensor before = parameters[0].detach().clone();
  const Tensor mean = optimizer_state(optimizer, names)[0].second.clone();
  parameters[0].mutable_grad().fill_(std::nan(""));
  optimizer.step_unless(torch::ones({}));
  EXPECT_TRUE(parameters[0].equal(before));
  EXPECT_TRUE(optimizer_state(optimizer, names)[0].second.equal(mean));
  EXPECT_EQ(optimizer_state(optimizer, names)[2].second.item<float>(), 1);
  set_gradients(parameters, 1);
  optimizer.step_unless(torch::zeros({}));
  EXPECT_FALSE(parameters[0].equal(before));
  EXPECT_EQ(optimizer_state(optimizer, names)[2].second.item<float>(), 2);
}

TEST(AdamW, TransposedGradientsAndParameters) {
  auto ours =
      std::vector<Tensor>{torch::randn({4, 6}, torch::kDouble).t().detach().requires_grad_()};
  auto theirs = std::vector<Tensor>{ours[0].detach().clone().requires_grad_()};
  const Tensor gradient = torch::randn({6, 4}, torch::kDouble);
  ours[0].mutable_grad() = gradient.contiguous();
  theirs[0].mutable_grad() = gradient.contiguous();
  AdamW optimizer(ours, options());
  torch::optim::AdamW peer(theirs, options());
  optimizer.step();
  peer.step();
  EXPECT_LE(worst_difference(ours, theirs), 1e-9);
}

// As where a model, or what was loaded, gets another memory format after some steps.
TEST(AdamW, StateIsLaidOutAsTheParameter) {
  auto ours = std::vector<Tensor>{torch::randn({4, 6}).requires_grad_()};
  auto theirs = std::vector<Tensor>{ours[0].detach().clone().requires_grad_()};
  const auto settings = options().amsgrad(true);
  AdamW optimizer(ours, settings);
  torch::optim::AdamW peer(theirs, settings);
  for (int step = 0; step < 3; ++step) {
    ours[0].mutable_grad() = torch::randn({4, 6});
    theirs[0].mutable_grad() = ours[0].grad().clone();
    if (step == 1) ours[0].set_data(ours[0].detach().t().contiguous().t());
    optimizer.step();
    peer.step();
  }
  EXPECT_LE(worst_difference(ours, theirs), 1e-5);
}

TEST(AdamW, StateTravelsByNameBitForBit) {
  auto first = make_parameters(), second = make_parameters();
  const auto named = [](const std::vector<Tensor>& p) {
    NamedTensors names;
    for (size_t i = 0; i < p.size(); ++i) names.emplace_back(flashstep::str("p", i), p[i]);
    names.emplace_back("tied", p[0]);
    return names;
  };
  AdamW one(first, options(true)), other(second, options(true));
  for (int step = 0; step < 3; ++step) {
    set_gradients(first, step);
    one.step();
  }
  const NamedTensors state = optimizer_state(one, named(first));
  EXPECT_EQ(state.size(), 4 * kShapes.size()) << "a tied tensor is written once";
  load_optimizer_state(other, named(second), state);
  for (size_t i = 0; i < first.size(); ++i) second[i].detach().copy_(first[i].detach());
  set_gradients(first, 9);
  set_gradients(second, 9);
  one.step();
  other.step();
  EXPECT_EQ(worst_difference(first, second), 0);
}

TEST(AdamW, TorchSaveAndLoad) {
  auto first = make_parameters(), second = make_parameters();
  AdamW one(first, options()), other(second, options());
  set_gradients(first, 0);
  one.step();
  std::stringstream bytes;
  torch::save(one, bytes);
  torch::load(other, bytes);
  for (size_t i = 0; i < first.size(); ++i) second[i].detach().copy_(first[i].detach());
  set_gradients(first, 1);
  set_gradients(second, 1);
  one.step();
  other.step();
  EXPECT_EQ(worst_difference(first, second), 0);
}

// What `Saved` has saved goes on in `Loaded`.
template <typename Saved, typename Loaded>
void expect_to_go_on(bool amsgrad) {
  auto first = make_parameters(torch::kDouble), second = make_parameters(torch::kDouble);
  Saved one(first, options(amsgrad));
  Loaded other(second, AdamWOptions(5));
  for (int step = 0; step < 3; ++step) {
    set_gradients(first, step);
    one.step();
  }
  std::stringstream bytes;
  torch::save(one, bytes);
  torch::load(other, bytes);
  for (size_t i = 0; i < first.size(); ++i) second[i].detach().copy_(first[i].detach());
  set_gradients(first, 3);
  set_gradients(second, 3);
  one.step();
  other.step();
  EXPECT_LE(worst_difference(first, second), 1e-8);
}

TEST(AdamW, LoadsWhatTorchsSavedAndTorchsLoadsIt) {
  for (const bool amsgrad : {false, true}) {
    expect_to_go_on<torch::optim::AdamW, AdamW>(amsgrad);
    expect_to_go_on<AdamW, torch::optim::AdamW>(amsgrad);
  }
}

// Archives of earlier versions have all in buffers.
TEST(AdamW, LoadsAStepThatIsATensor) {
  torch::serialize::OutputArchive written;
  for (const char* key : {"step", "exp_avg", "exp_avg_sq"})
    written.write(key, torch::full({}, 7.0), /*is_buffer=*/true);
  std::stringstream bytes;
  written.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  AdamWState state;
  state.serialize(archive);
  EXPECT_EQ(state.step.item<float>(), 7);
  EXPECT_EQ(state.exp_avg_sq.item<float>(), 7);
  EXPECT_FALSE(state.max_exp_avg_sq.defined());
}

TEST(AdamW, RefusesOptionsOfAnotherClass) {
  auto parameters = make_parameters();
  set_gradients(parameters, 0);
  const auto other_group = [&] {
    return OptimizerParamGroup({parameters[1]}, std::make_unique<torch::optim::SGDOptions>(0.1));
  };
  const std::vector<std::string> sentence = {"[AdamW] expected AdamWOptions", "another class"};
  testing::expect_sentence([&] { AdamW({other_group()}, options()); }, sentence);
  AdamW optimizer({parameters[0]}, options());
  optimizer.add_param_group(other_group());
  testing::expect_sentence([&] { optimizer.step(); }, sentence);
}

TEST(AdamW, KeepsMomentsInBFloat16) {
  auto first = make_parameters(), second = make_parameters();
  AdamW one(first, options()), other(second, options());
  one.keep_moments_in(at::kBFloat16);
  const auto moment = [](AdamW& optimizer, const Tensor& parameter) {
    return static_cast<AdamWState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl())).exp_avg;
  };
  for (int step = 0; step < 3; ++step) {
    set_gradients(first, step);
    one.step();
  }
  EXPECT_EQ(moment(one, first[0]).scalar_type(), at::kBFloat16);
  // Saved and loaded the run goes on with the same bits.
  std::stringstream bytes;
  torch::save(one, bytes);
  const std::string saved = bytes.str();
  torch::load(other, bytes);
  EXPECT_EQ(moment(other, second[0]).scalar_type(), at::kFloat) << "as the other keeps them";
  std::stringstream once_more(saved);
  other.keep_moments_in(at::kBFloat16);
  torch::load(other, once_more);
  for (size_t i = 0; i < first.size(); ++i) second[i].detach().copy_(first[i].detach());
  set_gradients(first, 9);
  set_gradients(second, 9);
  one.step();
  other.step();
  EXPECT_EQ(worst_difference(first, second), 0);
  // Moments that there are, are rounded; those of float64 parameters stay as they are.
  other.keep_moments_in(at::kFloat);
  EXPECT_EQ(moment(other, second[0]).scalar_type(), at::kFloat);
  auto wide = make_parameters(torch::kDouble);
  AdamW of_wide(wide);
  of_wide.keep_moments_in(at::kBFloat16);
  of_wide.allocate_state();
  EXPECT_EQ(moment(of_wide, wide[0]).scalar_type(), at::kDouble);
  EXPECT_THROW(one.keep_moments_in(at::kHalf), UserError);
  EXPECT_THROW(AdamW(first, options(true)).keep_moments_in(at::kBFloat16), UserError);
}

TEST(AdamW, RefusesWhatItCannotTrain) {
  EXPECT_THROW(AdamW(std::vector<Tensor>{torch::ones({2}, torch::kLong)}), UserError);
  EXPECT_THROW(AdamW(make_parameters(), AdamWOptions(-1)), UserError);
  EXPECT_THROW(AdamW(make_parameters(), AdamWOptions(1).betas({1.0, 0.9})), UserError);
  EXPECT_THROW(AdamW(std::vector<Tensor>{torch::ones({1, 3}).expand({4, 3})}), UserError);
  auto parameters = make_parameters();
  parameters[0].mutable_grad() = torch::zeros_like(parameters[0]).to_sparse();
  AdamW optimizer(parameters);
  EXPECT_THROW(optimizer.step(), UserError);
}

// Groups that are added, and options that are set, come without a call of AdamW's.
TEST(AdamW, RefusesOptionsOutOfRangeWhenAStepIsTaken) {
  auto parameters = make_parameters();
  set_gradients(parameters, 0);
  const std::vector<Tensor> others = {parameters.back()};
  parameters.pop_back();
  AdamW optimizer(parameters);
  const Tensor before = parameters[0].detach().clone();
  optimizer.add_param_group(
      torch::optim::OptimizerParamGroup(others, std::make_unique<AdamWOptions>(-1)));
  testing::expect_sentence([&] { optimizer.step(); }, {"learning rate", "got -1"});
  EXPECT_TRUE(torch::equal(parameters[0].detach(), before));
  optimizer.param_groups()[1].options().set_lr(std::nan(""));
  testing::expect_sentence([&] { optimizer.refresh_learning_rates(); },
                           {"learning rate", "got nan"});
  optimizer.param_groups()[1].options().set_lr(1e-3);
  EXPECT_NO_THROW(optimizer.step());
}

TEST(AdamW, RefusesStateOfOthers) {
  auto parameters = make_parameters();
  AdamW optimizer(parameters);
  const NamedTensors names = {{"w", parameters[0]}};
  EXPECT_THROW(load_optimizer_state(optimizer, names, {{"v/step", torch::ones({})}}), UserError);
  EXPECT_THROW(load_optimizer_state(optimizer, names, {{"w/step", torch::ones({})}}), UserError);
  EXPECT_THROW(load_optimizer_state(optimizer, names, {{"w/exp_avg", torch::ones({3})}}),
               UserError);
  EXPECT_EQ(testing::refused_tensor([&] {
              load_optimizer_state(optimizer, names, {{"w/exp_avg", torch::ones({3})}});
            }),
            "w");
  EXPECT_THROW(load_optimizer_state(optimizer, names, {{"w/what", torch::ones({7, 5})}}),
               UserError);
}

TEST(AdamW, AllocatesStateAheadOnlyForWhatIsTrained) {
  auto parameters = make_parameters();
  parameters[2].set_requires_grad(false);
  AdamW optimizer(parameters);
  optimizer.allocate_state();
  EXPECT_EQ(optimizer.state().size(), kShapes.size() - 1);
}

}  // namespace
}  // namespace flashstep
