// The training step and its files on a GPU: equal to the CPU's within rounding, and bit for bit
// from run to run.
#include "flashstep/measure/gpu.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "flashstep/checkpoint.h"
#include "flashstep/loop.h"
#include "flashstep/measure/limits.h"
#include "flashstep/model.h"
#include "flashstep/model/generate.h"
#include "flashstep/ops.h"
#include "flashstep/optim.h"

namespace flashstep {
namespace {

using torch::Tensor;

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 257;
  config.context_length = 48;
  config.d_model = 64;
  config.d_ff = 160;
  config.num_layers = 2;
  config.num_heads = 4;
  return config;
}

struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> parameters;  // on the CPU
};

// Twelve steps on fixed data.
Trained train_tiny(torch::Device device, Precision precision, int64_t steps = 12) {
  Transformer model(tiny_model(), /*seed=*/3, torch::TensorOptions(device));
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3).weight_decay(0.1));
  const Tensor tokens = torch::arange(4 * 49).reshape({4, 49}).remainder(37).to(device);
  const Tensor inputs = tokens.slice(1, 0, 48), targets = tokens.slice(1, 1, 49);
  StepOptions options;
  options.max_norm = 1;
  options.precision = precision;
  TrainStep step(
      model->parameters(), optimizer,
      [&](int64_t, int64_t) { return cross_entropy(model->forward(inputs), targets); }, options);
  Trained trained;
  for (int64_t i = 0; i < steps; ++i) trained.losses.push_back(step.run(i).loss.item<double>());
  for (const Tensor& parameter : model->parameters()) {
    trained.parameters.push_back(parameter.detach().cpu());
  }
  return trained;
}

TEST_F(GpuTest, StepsAgreeWithTheCpu) {
  const Trained cpu = train_tiny(torch::kCPU, Precision::kFloat32);
  const Trained gpu = train_tiny(torch::kCUDA, Precision::kFloat32);
  EXPECT_LT(cpu.losses.back(), 0.7 * cpu.losses.front());
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    // float32 sums in another order, carried through twelve updates of Adam, whose first steps have
    // the size of the learning rate whatever the gradient's: 1e-3 is a hundred times what one step
    // differs by.
    EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 1e-3 * cpu.losses[i]) << "step " << i;
  }
}

TEST_F(GpuTest, LowPrecisionLearnsAsFloat32Does) {
  const Trained exact = train_tiny(torch::kCUDA, Precision::kFloat32);
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    const Trained low = train_tiny(torch::kCUDA, precision);
    EXPECT_LT(low.losses.back(), 0.7 * low.losses.front());
    // bf16 keeps 8 bits: a relative 2^-8 in every activation.
    EXPECT_NEAR(low.losses.front(), exact.losses.front(), 4 * exact.losses.front() / 256);
  }
}

TEST_F(GpuTest, DeterministicRunsRepeatBitForBit) {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    const Trained once = train_tiny(torch::kCUDA, precision);
    const Trained again = train_tiny(torch::kCUDA, precision);
    EXPECT_EQ(once.losses, again.losses);
    for (size_t i = 0; i < once.parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(once.parameters[i], again.parameters[i])) << "parameter " << i;
    }
  }
}

TEST_F(GpuTest, AStepThatIsNotFiniteChangesNothing) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor weight = torch::ones({1000}, torch::kCUDA).requires_grad_();
    AdamW optimizer({weight}, torch::optim::AdamWOptions(0.1));
    double factor = 1;
    TrainStep step({weight}, optimizer, [&](int64_t, int64_t) { return (weight * factor).sum(); },
                   {});
    EXPECT_EQ(step.run(0).skipped.item<float>(), 0);
    const Tensor before = weight.detach().clone();
    factor = bad;
    EXPECT_EQ(step.run(1).skipped.item<float>(), 1);
    EXPECT_TRUE(torch::equal(weight, before));
    factor = 1;
    EXPECT_EQ(step.run(2).skipped.item<float>(), 0);
    EXPECT_FALSE(torch::equal(weight, before));
  }
}

TEST_F(GpuTest, OverflowHalvesTheLossScale) {
  Tensor weight = torch::ones({8, 8}, torch::kCUDA).requires_grad_();
  AdamW optimizer({weight}, torch::optim::AdamWOptions(1e-3));
  StepOptions options;
  options.precision = Precision::kFloat16;
  const Tensor x = torch::full({8, 8}, 1e3, torch::kCUDA);
  TrainStep step(
      {weight}, optimizer,
      [&](int64_t, int64_t) { return torch::matmul(x, weight).to(torch::kFloat).sum(); }, options);
  const auto scale = [&] {
    for (const auto& [name, tensor] : step.state()) {
      if (name.find("scale") != std::string::npos) return tensor.item<double>();
    }
    return std::nan("");
  };
  const double first = scale();
  EXPECT_EQ(first, 65536);
  // 8 * 1e3 * 65536 is beyond float16's 65504.
  EXPECT_EQ(step.run(0).skipped.item<float>(), 1);
  EXPECT_EQ(scale(), first / 2);
  int64_t i = 1;
  while (step.run(i).skipped.item<float>() == 1 && i < 30) ++i;
  EXPECT_LT(i, 20) << "the scale never came down to where gradients fit";
}

TEST_F(GpuTest, TensorsGoToFilesAndBack) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / "gpu_test.safetensors";
  const Tensor large = torch::randn({1200, 5000}, torch::kCUDA);  // more than one 16 MiB piece
  const Tensor strided = torch::randn({300, 200}, torch::kCUDA).to(torch::kBFloat16).t();
  write_safetensors(path, {{"large", large}, {"strided", strided}});
  const SafetensorsFile file(path);
  EXPECT_TRUE(torch::equal(file.tensor("large"), large.cpu()));
  Tensor back =
      torch::zeros({200, 300}, torch::TensorOptions(torch::kCUDA).dtype(torch::kBFloat16));
  file.copy_to("strided", back);
  EXPECT_TRUE(torch::equal(back, strided));
  std::filesystem::remove(path);
}

TEST_F(GpuTest, GeneratedTextDoesNotDependOnTheCache) {
  Transformer model(tiny_model(), 5, torch::TensorOptions(torch::kCUDA));
  GenerateOptions options;
  options.max_tokens = 30;
  options.temperature = 0;
  const std::vector<int64_t> prompt = {1, 2, 3};
  const std::vector<int64_t> cached = generate(model, prompt, options);
  EXPECT_EQ(cached.size(), 30u);
  options.use_cache = false;
  EXPECT_EQ(generate(model, prompt, options), cached);
}

TEST_F(GpuTest, MachineAndMemoryAreSeen) {
  const std::vector<measure::Gpu> gpus = measure::list_gpus();
  ASSERT_TRUE(measure::built_with_cuda());
  ASSERT_FALSE(gpus.empty());
  EXPECT_FALSE(gpus[0].name.empty());
  EXPECT_GT(gpus[0].multiprocessors, 0);
  measure::reset_gpu_peak_allocated();
  const uint64_t before = measure::gpu_allocated_bytes();
  {
    const Tensor held =
        torch::empty({64 << 20}, torch::TensorOptions(torch::kCUDA).dtype(torch::kByte));
  }
  EXPECT_GE(measure::gpu_peak_allocated_bytes(), before + (64u << 20));
  EXPECT_EQ(measure::gpu_allocated_bytes(), before);
  const measure::GpuBandwidth bandwidth = measure::measure_gpu_bandwidth();
  EXPECT_GT(bandwidth.copy, 0);  // no speed is promised: a sanitizer may be watching
  EXPECT_GT(bandwidth.read, 0);
}

}  // namespace
}  // namespace flashstep
