// A Transformer whose blocks multiply 8-bit numbers, against the one in float64.
#include <cmath>
#include <functional>
#include <string>

#include <torch/cuda.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/products/product.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::kGpu;

class Float8Model : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    if (!has_scaled_products(kGpu)) GTEST_SKIP() << "a GPU without float8";
  }
};

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 96;
  config.context_length = 50;
  config.d_model = 128;
  config.d_ff = 352;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  return resolved(config);
}

struct Pass {
  bool in_float8 = true, short_stream = true;
  Recompute recompute = Recompute::kNone;
  int64_t micro_batches = 1, backwards = 1;  // backwards: of each micro-batch's graph
  // Before the first forward pass.
  std::function<void(TransformerImpl& model)> prepare = [](TransformerImpl&) {};
};

// The loss and all gradients, one behind the other, in float64 on the CPU; NaN where none is.
std::vector<Tensor> run(const ModelConfig& config, const Pass& pass,
                        at::ScalarType dtype = at::kFloat) {
  Transformer model(config, /*seed=*/5, at::TensorOptions(kGpu).dtype(dtype));
  model->set_float8_products(pass.in_float8);
  model->set_short_stream(pass.short_stream);
  model->set_recompute(pass.recompute);
  pass.prepare(*model);
  Tensor loss;
  for (int64_t batch = 0; batch < pass.micro_batches; ++batch) {
    const Tensor tokens =
        (at::arange(2 * 51, at::kLong).square() % config.vocab_size).view({2, 51}).to(kGpu);
    std::optional<AutocastGuard> autocast;
    if (dtype == at::kFloat) autocast.emplace(at::kCUDA, at::kBFloat16);
    loss = model->loss(tokens.narrow(1, 0, 50).contiguous(), tokens.narrow(1, 1, 50).contiguous());
    autocast.reset();
    for (int64_t i = 0; i < pass.backwards; ++i)
      loss.backward({}, /*retain_graph=*/i + 1 < pass.backwards);
  }
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : model->parameters()) {
    const Tensor gradient =
        parameter.grad().defined() ? parameter.grad() : at::full_like(parameter.detach(), NAN);
    gradients.push_back(gradient.flatten().to(at::kDouble).cpu());
  }
  return {loss.detach().to(at::kDouble).cpu(), at::cat(gradients)};
}

double error_of(const Tensor& got, const Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

TEST_F(Float8Model, LossAndGradientsAreNearFloat64) {
  const ModelConfig config = small_config();
  const auto exact = run(config, {.in_float8 = false, .short_stream = false}, at::kDouble);
  const auto in_bf16 = run(config, {.in_float8 = false});
  for (const bool short_stream : {true, false}) {
    const auto got = run(config, {.short_stream = short_stream});
    EXPECT_LT(error_of(got[0], exact[0]), 0.01);
    EXPECT_LT(error_of(got[1], exact[1]), 0.12);  // a rounded gradient's 6 %, some layers deep
    EXPECT_GT(error_of(got[1], exact[1]), 3 * error_of(in_bf16[1], exact[1])) << "not of 8 bits";
  }
}

TEST_F(Float8Model, BitsRepeatWhateverIsRecomputed) {
  const ModelConfig config = small_config();
  const auto first = run(config, {});
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kNorms, Recompute::kInner, Recompute::kBlock}) {
    const auto again = run(config, {.recompute = recompute});
    EXPECT_TRUE(testing::same_bits(again[0], first[0])) << static_cast<int>(recompute);
    EXPECT_TRUE(testing::same_bits(again[1], first[1])) << static_cast<int>(recompute);
  }
}

TEST_F(Float8Model, MicroBatchesAddUp) {
  const ModelConfig config = small_config();
  const auto one = run(config, {}), three = run(config, {.micro_batches = 3});
  EXPECT_LT(error_of(three[1], 3 * one[1]), 4e-3);  // one's matrices are rounded to bfloat16
}

TEST_F(Float8Model, AGraphThatIsKeptIsGoneThroughAgain) {
  const ModelConfig config = small_config();
  const auto one = run(config, {}), two = run(config, {.backwards = 2});
  EXPECT_LT(error_of(two[1], 2 * one[1]), 4e-3);
}

// Some of the weights that are multiplied together, and some alone.
TEST_F(Float8Model, FrozenWeightsChangeNoOthersGradients) {
  const ModelConfig config = small_config();
  const auto freeze = [](TransformerImpl& model) {
    for (auto& item : model.named_parameters()) {
      const std::string& name = item.key();
      if (name.find("q_proj") != name.npos || name.find("w1") != name.npos ||
          name.find("layers.1") != name.npos)
        item.value().requires_grad_(false);
    }
  };
  const auto whole = run(config, {.short_stream = false});
  for (const Recompute recompute : {Recompute::kNone, Recompute::kInner}) {
    const auto part =
        run(config, {.short_stream = false, .recompute = recompute, .prepare = freeze});
    const Tensor has = part[1].isfinite();
    EXPECT_LT(has.sum().item<int64_t>(), has.numel());
    EXPECT_LT(error_of(part[1].masked_select(has), whole[1].masked_select(has)), 4e-3);
  }
}

// A hook behind autograd's addition sees what a step is to take.
TEST_F(Float8Model, HooksSeeTheGradient) {
  const ModelConfig config = small_config();
  const auto halves = [](TransformerImpl& model) {
    for (Tensor& parameter : model.parameters())
      parameter.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
  };
  const auto one = run(config, {}), half = run(config, {.prepare = halves});
  EXPECT_LT(error_of(half[1], 0.5 * one[1]), 4e-3);
}

TEST_F(Float8Model, OtherWidthsAreRefused) {
  ModelConfig config = small_config();
  config.d_ff = 344;
  Transformer model(config, 5, at::TensorOptions(kGpu));
  EXPECT_THROW(model->set_float8_products(true), UserError);
  model->set_float8_products(false);
}

}  // namespace
}  // namespace flashstep
