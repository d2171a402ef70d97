#include "flashstep/model.h"

#include <cmath>
#include <map>

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/model/init.h"
#include "flashstep/model/test_tiny.h"
#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using testing::gradients;
using testing::tiny;

TEST(Config, NamedSizesAreTheHandouts) {
  // d_model, d_ff, layers, heads, parameters; 3,406,809,600 is published for the 2026 xl.
  const std::map<std::string, std::array<int64_t, 5>> expected = {
      {"small", {768, 3072, 12, 12, 128625408}},   {"medium", {1024, 4096, 24, 16, 423183360}},
      {"large", {1280, 5120, 36, 20, 969411840}},  {"xl", {1600, 6400, 48, 25, 1998235200}},
      {"2.7B", {2560, 10240, 32, 32, 3406809600}}, {"xl26", {2560, 10240, 32, 32, 3406809600}},
      {"10B", {4608, 12288, 50, 36, 12832823808}}, {"8B", {4096, 11008, 34, 32, 8125698048}},
  };
  ASSERT_EQ(model_size_names().size(), expected.size());
  for (const auto& [name, sizes] : expected) {
    const auto config = named_model(name);
    EXPECT_EQ(config.d_model, sizes[0]) << name;
    EXPECT_EQ(config.d_ff, sizes[1]) << name;
    EXPECT_EQ(config.num_layers, sizes[2]) << name;
    EXPECT_EQ(config.num_heads, sizes[3]) << name;
    EXPECT_EQ(parameter_count(config), sizes[4]) << name;
  }
}

TEST(Config, GivenFieldsOverrideTheNamedSize) {
  ModelConfig config;
  config.size = "small";
  config.num_layers = 2;
  const auto full = resolved(config);
  EXPECT_EQ(full.num_layers, 2);
  EXPECT_EQ(full.d_model, 768);
  EXPECT_EQ(full.vocab_size, 10000);
}

TEST(Config, NamesWhatIsWrong) {
  auto config = tiny();
  config.num_heads = 5;
  EXPECT_SAYS("d_model to be divisible by num_heads, got d_model 24 and num_heads 5",
              Transformer{config});
  config.num_heads = 8;
  EXPECT_SAYS("even head_dim", Transformer{config});
  config = tiny();
  config.num_kv_heads = 3;
  EXPECT_SAYS("num_heads to be divisible by num_kv_heads, got num_heads 4 and num_kv_heads 3",
              Transformer{config});
  config = tiny();
  config.d_ff = 0;
  EXPECT_SAYS("d_ff 0", resolved(config));
  EXPECT_SAYS("expected size to be one of small, medium", named_model("huge"));
  config = tiny();
  config.attention = "none";
  Transformer model(config);
  EXPECT_SAYS("implementation to be one of auto", model->forward(torch::zeros({1, 2}, at::kLong)));
}

TEST(Config, NamesWhatIsRecomputed) {
  EXPECT_EQ(recompute_by_name("none"), Recompute::kNone);
  EXPECT_EQ(recompute_by_name("inner"), Recompute::kInner);
  EXPECT_EQ(recompute_by_name("block"), Recompute::kBlock);
  testing::expect_sentence([] { recompute_by_name("blocks"); },
                           {"none, norms, inner, block", "\"blocks\""});
}

TEST(Transformer, HasTheCoursesParameterNames) {
  Transformer model(tiny());
  std::vector<std::string> names;
  for (const auto& parameter : model->named_parameters()) names.push_back(parameter.key());
  const std::vector<std::string> first = {"token_embeddings.weight",
                                          "layers.0.attn.q_proj.weight",
                                          "layers.0.attn.k_proj.weight",
                                          "layers.0.attn.v_proj.weight",
                                          "layers.0.attn.output_proj.weight",
                                          "layers.0.ffn.w1.weight",
                                          "layers.0.ffn.w2.weight",
                                          "layers.0.ffn.w3.weight",
                                          "layers.0.ln1.weight",
                                          "layers.0.ln2.weight"};
  ASSERT_EQ(names.size(), 1 + 3 * 9 + 2u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 10), first);
  EXPECT_EQ(names[names.size() - 2], "ln_final.weight");
  EXPECT_EQ(names.back(), "lm_head.weight");
  EXPECT_TRUE(model->buffers().empty());
  int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  EXPECT_EQ(count, parameter_count(tiny()));
}

TEST(Initialization, HasTheCoursesMoments) {
  auto config = tiny();
  config.vocab_size = 3000;
  Transformer model(config, 7);
  const auto expect_spread = [](const at::Tensor& w, double sigma) {
    // Truncation at 3 sigma leaves 98.66 % of the standard deviation.
    const double bound = 5 * sigma / std::sqrt(static_cast<double>(w.numel()));
    EXPECT_NEAR(w.mean().item<double>(), 0, bound);
    EXPECT_NEAR(w.std().item<double>(), 0.98658 * sigma, bound);
    EXPECT_LE(w.abs().max().item<double>(), 3 * sigma * (1 + 1e-6));
    EXPECT_GE(w.abs().max().item<double>(), 2.5 * sigma);
  };
  expect_spread(model->token_embeddings->weight, 1.0);
  expect_spread(model->lm_head->weight, std::sqrt(2.0 / (3000 + 24)));
  expect_spread(model->layers[1]->ffn->w1->weight, std::sqrt(2.0 / (24 + 40)));
  EXPECT_TRUE(testing::close(model->ln_final->weight, torch::ones({24}), 0));
}

std::string hash_of(Transformer& model) {
  Hasher hasher;
  for (const auto& parameter : model->named_parameters()) {
    hasher.update(parameter.key());
    hasher.update(parameter.value().data_ptr(), parameter.value().nbytes());
  }
  return hasher.hex();
}

TEST(Initialization, RepeatsForASeedAndHasNotChanged) {
  Transformer model(tiny(), 1), same(tiny(), 1), other(tiny(), 2);
  EXPECT_EQ(hash_of(model), hash_of(same));
  EXPECT_NE(hash_of(model), hash_of(other));
  EXPECT_EQ(hash_of(model), "ecbffe9972af32c942bb43b292d0cf5f");
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  Transformer alone(tiny(), 1);
  at::set_num_threads(threads);
  EXPECT_EQ(hash_of(model), hash_of(alone));
}

TEST(Initialization, IsDrawnByWhomeverIsAsked) {
  Transformer model(tiny(), std::nullopt);
  model->initialize([](const at::Tensor& parameter, double standard_deviation, double bound,
                       const std::string& name) {
    fill_truncated_normal(parameter, standard_deviation, bound, 1, name);
  });
  Transformer expected(tiny(), 1);
  EXPECT_EQ(hash_of(model), hash_of(expected));
}

TEST(Initialization, AskedForInPartsChangesNothing) {
  Transformer model(tiny(), 1), expected(tiny(), 1);
  {
    const at::NoGradGuard no_grad;
    model->ln_final->weight.fill_(2);
    expected->ln_final->weight.fill_(2);
  }
  const PartFill fill = model->part_fill(1);
  EXPECT_EQ(hash_of(model), hash_of(expected));
  const at::Tensor norm = torch::empty({3});
  fill("ln_final.weight", norm, 0);
  EXPECT_TRUE(testing::same_bits(norm, torch::ones({3})));
}

TEST(Initialization, DoesNotDependOnOtherLayers) {
  auto deeper = tiny();
  deeper.num_layers = 5;
  Transformer a(tiny(), 3), b(deeper, 3);
  EXPECT_TRUE(
      testing::same_bits(a->layers[2]->attn->q_proj->weight, b->layers[2]->attn->q_proj->weight));
}

TEST(Transformer, IsCausal) {
  Transformer model(tiny(), 1);
  const at::NoGradGuard no_grad;
  const auto tokens = torch::randint(61, {2, 24});
  auto changed = tokens.clone();
  changed.select(1, 12).fill_(5);
  const auto a = model->forward(tokens), b = model->forward(changed);
  EXPECT_TRUE(testing::close(a.narrow(1, 0, 12), b.narrow(1, 0, 12), 1e-5));
  EXPECT_FALSE(testing::close(a.narrow(1, 12, 12), b.narrow(1, 12, 12), 1e-3));
}

// A token reaches as many others as there are layers of windows.
TEST(Transformer, SeesItsWindow) {
  ModelConfig config = tiny();
  config.window = 4;
  Transformer model(config, 1);
  const at::NoGradGuard no_grad;
  const auto tokens = torch::randint(61, {2, 24});
  auto changed = tokens.clone();
  changed.select(1, 2).fill_((tokens[0][2].item<int64_t>() + 1) % 61);
  const int64_t reach = 2 + config.num_layers * 3;  // the last that knows of it
  const auto apart = (model->forward(tokens) - model->forward(changed)).abs().amax({0, 2}).gt(1e-5);
  ASSERT_LT(reach + 1, 24);
  EXPECT_FALSE(apart.narrow(0, 0, 2).any().item<bool>());
  EXPECT_TRUE(apart.narrow(0, 2, reach - 1).all().item<bool>());
  EXPECT_FALSE(apart.narrow(0, reach + 1, 23 - reach).any().item<bool>());
}

// Behind the end of a document a row is what it is by itself, with all that is computed again.
TEST(Transformer, SeesItsDocument) {
  ModelConfig config = tiny();
  config.document_end = 9;
  Transformer model(config, 1);
  const auto tokens = torch::randint(10, 61, {2, 24});
  tokens[0][4] = tokens[1][15] = 9;
  const auto logits = model->forward(tokens);
  for (const auto& [row, begin, count] :
       {std::tuple(0, 0, 5), std::tuple(0, 5, 19), std::tuple(1, 16, 8)}) {
    const auto alone = model->forward(tokens.narrow(0, row, 1).narrow(1, begin, count));
    EXPECT_TRUE(testing::close(logits.narrow(0, row, 1).narrow(1, begin, count), alone, 1e-5));
  }
  const auto expected = testing::gradients(model, tokens);
  model->set_recompute(Recompute::kBlock, 2);
  const auto again = testing::gradients(model, tokens);
  for (size_t i = 0; i < again.size(); ++i)
    EXPECT_TRUE(testing::same_bits(again[i], expected[i])) << i;
  config.document_end = 61;
  EXPECT_SAYS("expected document_end to be a token below vocab_size 61, or -1, got 61",
              Transformer(config, 1));
}

TEST(Transformer, RefusesWhatDoesNotFit) {
  Transformer model(tiny());
  EXPECT_SAYS("at most context_length = 24 tokens, got 25",
              model->forward(torch::zeros({1, 25}, at::kLong)));
  EXPECT_SAYS("int64 tokens of shape (B, N)", model->forward(torch::zeros({3}, at::kLong)));
  EXPECT_SAYS("int64 tokens of shape (B, N)", model->forward(torch::zeros({1, 3})));
}

TEST(Transformer, TakesNoTokens) {
  Transformer model(tiny(), 1);
  for (const auto& sizes : {std::vector<int64_t>{0, 4}, {2, 0}}) {
    const auto tokens = torch::zeros(sizes, at::kLong);
    const auto logits = model->forward(tokens);
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{sizes[0], sizes[1], 61}));
    logits.sum().backward();
    for (const auto& parameter : model->parameters())
      EXPECT_EQ(parameter.grad().abs().max().item<double>(), 0);
    const auto loss = model->loss(tokens, tokens);  // a mean of nothing
    EXPECT_TRUE(std::isnan(loss.item<double>()));
    loss.backward();
  }
}

ModelConfig grouped_and_tied() {
  ModelConfig config = tiny();
  config.num_kv_heads = 2;
  config.tie_embeddings = true;
  return config;
}

TEST(Transformer, GroupedQueriesAreHeadsWithEqualKeys) {
  ModelConfig few = tiny();
  few.num_kv_heads = 2;
  Transformer grouped(few, 4), whole(tiny(), 5);
  const at::NoGradGuard no_grad;
  const auto repeated = [](const at::Tensor& weight) {  // (2 D, C) -> (4 D, C)
    return weight.view({2, 6, 24}).repeat_interleave(2, 0).view({24, 24});
  };
  const auto from = grouped->named_parameters(), to = whole->named_parameters();
  for (const auto& item : from) {
    const bool is_of_keys = item.value().dim() == 2 && item.value().size(0) == 12;
    to[item.key()].copy_(is_of_keys ? repeated(item.value()) : item.value());
  }
  const auto tokens = torch::randint(61, {2, 24});
  EXPECT_TRUE(testing::close(grouped->forward(tokens), whole->forward(tokens), 1e-5));
}

TEST(Transformer, TiesItsHeadToTheEmbedding) {
  Transformer model(grouped_and_tied(), 1), again(grouped_and_tied(), std::nullopt);
  const at::Tensor weight = model->token_embeddings->weight;
  EXPECT_TRUE(model->lm_head->weight.is_same(weight));
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (61 + 24)), 0.01);
  const PartFill fill = again->part_fill(1);
  at::Tensor drawn = torch::empty({61 * 24});
  fill("token_embeddings.weight", drawn, 0);
  EXPECT_TRUE(testing::same_bits(drawn, weight.detach().flatten()));
  // The gradient is the sum of both uses'.
  ModelConfig untied = grouped_and_tied();
  untied.tie_embeddings = false;
  Transformer apart(untied, 1);
  {
    const at::NoGradGuard no_grad;
    const auto from = model->named_parameters(), to = apart->named_parameters();
    for (const auto& item : from) to[item.key()].copy_(item.value());
  }
  const auto tokens = torch::randint(61, {4, 24});
  gradients(model, tokens);
  gradients(apart, tokens);
  const at::Tensor sum = apart->token_embeddings->weight.grad() + apart->lm_head->weight.grad();
  EXPECT_TRUE(testing::close(weight.grad(), sum, 1e-5));
  model->to(at::kDouble);
  EXPECT_TRUE(model->lm_head->weight.is_same(model->token_embeddings->weight));
}

class TransformerSlope : public ::testing::TestWithParam<ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, TransformerSlope, ::testing::Values(tiny(), grouped_and_tied()));

TEST_P(TransformerSlope, LossFollowsItsGradient) {
  Transformer model(GetParam(), 1);
  torch::manual_seed(1);
  const auto tokens = torch::randint(61, {4, 24});
  const auto slopes = gradients(model, tokens);
  const at::NoGradGuard no_grad;
  const auto loss = [&] {
    return cross_entropy(model->forward(tokens.narrow(1, 0, 23)), tokens.narrow(1, 1, 23))
        .item<double>();
  };
  const auto parameters = model->parameters();
  double squares = 0;
  for (const auto& slope : slopes) squares += slope.to(at::kDouble).square().sum().item<double>();
  const double step = 1e-3 / std::sqrt(squares);
  const auto move = [&](double by) {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].add_(slopes[i], by);
  };
  move(step);
  const double above = loss();
  move(-2 * step);
  const double below = loss();
  EXPECT_NEAR((above - below) / (2 * step) / squares, 1.0, 2e-2);
}

TEST(Transformer, RepeatsBitForBit) {
  torch::manual_seed(2);
  const auto tokens = torch::randint(61, {4, 24});
  Transformer model(tiny(), 1);
  const auto once = gradients(model, tokens), again = gradients(model, tokens);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(testing::same_bits(once[i], again[i]));
}

TEST(Transformer, KeepsItsStreamInBFloat16OnRequest) {
  Transformer model(tiny(), 3);
  const at::Tensor tokens = at::arange(10, at::kLong).view({2, 5}) % tiny().vocab_size;
  std::vector<at::ScalarType> seen;
  model->set_block_runner([&](std::span<const BlockCall> blocks, at::Tensor x) {
    seen.push_back(x.scalar_type());
    return run_blocks_in_order(blocks, x);
  });
  const auto loss = [&](bool is_short) {
    model->set_short_stream(is_short);
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    return model->loss(tokens, tokens);
  };
  const at::Tensor wide = loss(false), narrow = loss(true);
  narrow.backward();
  model->loss(tokens, tokens);  // without autocast nothing is rounded
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kFloat, at::kBFloat16, at::kFloat}));
  EXPECT_NEAR(narrow.item<double>(), wide.item<double>(), 0.02 * wide.item<double>());
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
}

TEST(Cost, CountsByHand) {
  ModelConfig config;
  config.vocab_size = 10;
  config.context_length = 4;
  config.d_model = 2;
  config.d_ff = 3;
  config.num_layers = 1;
  config.num_heads = 1;
  EXPECT_EQ(parameter_count(config), 2 * 20 + 4 * 4 + 3 * 6 + 3 * 2);
  const auto flops = forward_flops(config, 3);
  EXPECT_EQ(flops.linear, 2 * 3 * (16 + 18));
  EXPECT_EQ(flops.attention, 4 * 2 * 6);  // 6 pairs
  EXPECT_EQ(flops.head, 2 * 3 * 2 * 10);
  EXPECT_EQ(forward_flops(config, 3, false).attention, 4 * 2 * 9);
  EXPECT_EQ(step_flops(config, 5, 3), 15 * flops.total());
}

}  // namespace
}  // namespace flashstep
