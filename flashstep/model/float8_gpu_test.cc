// A Transformer whose blocks multiply 8-bit numbers, against the one in float64.
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
  int64_t micro_batches = 1;
};

// The loss and all gradients, one behind the other, in float64 on the CPU.
std::vector<Tensor> run(const ModelConfig& config, const Pass& pass,
                        at::ScalarType dtype = at::kFloat) {
  Transformer model(config, /*seed=*/5, at::TensorOptions(kGpu).dtype(dtype));
  model->set_float8_products(pass.in_float8);
  model->set_short_stream(pass.short_stream);
  model->set_recompute(pass.recompute);
  Tensor loss;
  for (int64_t batch = 0; batch < pass.micro_batches; ++batch) {
    const Tensor tokens =
        (at::arange(2 * 51, at::kLong).square() % config.vocab_size).view({2, 51}).to(kGpu);
    std::optional<AutocastGuard> autocast;
    if (dtype == at::kFloat) autocast.emplace(at::kCUDA, at::kBFloat16);
    loss = model->loss(tokens.narrow(1, 0, 50).contiguous(), tokens.narrow(1, 1, 50).contiguous());
    autocast.reset();
    loss.backward();
  }
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : model->parameters())
    gradients.push_back(parameter.grad().flatten().to(at::kDouble).cpu());
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

TEST_F(Float8Model, OtherWidthsAreRefused) {
  ModelConfig config = small_config();
  config.d_ff = 344;
  Transformer model(config, 5, at::TensorOptions(kGpu));
  EXPECT_THROW(model->set_float8_products(true), UserError);
  model->set_float8_products(false);
}

}  // namespace
}  // namespace flashstep
