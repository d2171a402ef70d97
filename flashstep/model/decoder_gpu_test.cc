// Tokens one at a time by the decoder's kernels, against the model on the CPU.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/decoder.h"
#include "flashstep/model/generate.h"
#include "flashstep/model/test_tiny.h"
#include "flashstep/ops/recorded_work.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::kGpu;

class DecoderGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  }
};

ModelConfig sizes(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t context = 24) {
  ModelConfig config;
  config.vocab_size = 61;
  config.context_length = context;
  config.d_model = heads * head_dim;
  config.d_ff = 40;
  config.num_layers = 3;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  return config;
}

Transformer on(at::Device device, const ModelConfig& config, at::ScalarType dtype = at::kFloat) {
  return Transformer(config, /*seed=*/3, at::TensorOptions(device).dtype(dtype));
}

const std::vector<int64_t> kPrompt = {3, 1, 4, 1, 5};

GenerateOptions tokens(int64_t count, uint64_t seed = 5) {
  GenerateOptions options;
  options.max_tokens = count;
  options.seed = seed;
  return options;
}

// Tokens of the decoder and of the CPU.
void expect_equal_texts(const ModelConfig& config, const GenerateOptions& options,
                        const std::vector<int64_t>& prompt = kPrompt) {
  Transformer ours = on(kGpu, config), theirs = on(at::kCPU, config);
  ASSERT_TRUE(Decoder::takes(ours));
  EXPECT_EQ(generate(ours, prompt, options), generate(theirs, prompt, options));
}

TEST_F(DecoderGpu, WritesWhatTheCpuWrites) {
  for (const auto& [heads, kv_heads, head_dim] :
       std::vector<std::array<int64_t, 3>>{{4, 4, 8},
                                           {4, 2, 8},
                                           {12, 2, 64},
                                           {20, 1, 8},
                                           {40, 2, 8},
                                           {1, 1, 72},
                                           {2, 2, 128},
                                           {3, 1, 256},
                                           {16, 16, 64}}) {
    SCOPED_TRACE(str(heads, " heads, ", kv_heads, " of keys, ", head_dim));
    expect_equal_texts(sizes(heads, kv_heads, head_dim), tokens(60));  // 24 fit
  }
}

TEST_F(DecoderGpu, KeysAreDividedAmongBlocks) {
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 700; ++i) prompt.push_back(i * i % 61);
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(6, 1), std::pair(20, 1)}) {
    for (const int64_t window : {0, 5, 300}) {
      SCOPED_TRACE(str(heads, " heads, window ", window));
      ModelConfig config = sizes(heads, kv_heads, 16, /*context=*/800);
      config.window = window;
      expect_equal_texts(config, tokens(90), prompt);
    }
  }
}

TEST_F(DecoderGpu, KnowsTheModelsOtherFields) {
  ModelConfig config = sizes(4, 2, 8);
  config.tie_embeddings = true;
  config.rope_theta = 100;
  config.rope_scaling = {
      .factor = 4, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_context = 8};
  config.norm_epsilon = 0.3;
  config.window = 7;
  config.document_end = 9;
  expect_equal_texts(config, tokens(200));
}

TEST_F(DecoderGpu, DrawsAsTheOptionsSay) {
  for (const double temperature : {0.0, 0.5, 1.0, 3.0}) {
    for (const int64_t top_k : {0, 1, 7, 61, 100}) {
      for (const double top_p : {1.0, 0.9, 0.1, 1e-9}) {
        SCOPED_TRACE(str(temperature, " ", top_k, " ", top_p));
        GenerateOptions options = tokens(18);
        options.temperature = temperature;
        options.top_k = top_k;
        options.top_p = top_p;
        expect_equal_texts(sizes(4, 2, 8), options);
      }
    }
  }
}

TEST_F(DecoderGpu, TheSameSeedWritesTheSameText) {
  Transformer model = on(kGpu, sizes(12, 2, 64, /*context=*/300), at::kBFloat16);
  const auto text = generate(model, kPrompt, tokens(200));
  EXPECT_EQ(generate(model, kPrompt, tokens(200)), text);
  EXPECT_NE(generate(model, kPrompt, tokens(200, /*seed=*/6)), text);
  {
    const at::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.mul_(1.5);
  }
  EXPECT_NE(generate(model, kPrompt, tokens(200)), text);
}

// Logits behind `given`, the first part of which the model sees as a whole.
Tensor logits_of(Transformer& model, const std::vector<int64_t>& given, int64_t first) {
  const at::NoGradGuard no_grad;
  const GpuStream stream;
  KeyValueCache cache(model->config(), 1, static_cast<int64_t>(given.size()),
                      model->lm_head->weight.options());
  model->hidden(at::tensor(given).narrow(0, 0, first).unsqueeze(0).to(kGpu), &cache);
  const GenerateOptions options;
  Decoder decoder(model, cache, options);
  for (size_t i = first; i < given.size(); ++i) decoder.next(given[i], 0.5);
  return decoder.logits().to(at::kCPU, at::kDouble);
}

TEST_F(DecoderGpu, Rounds16BitNumbersNoMoreThanTheModel) {
  ModelConfig config = sizes(8, 2, 64, /*context=*/3'000);
  config.d_ff = 1'024;
  config.vocab_size = 1'000;
  std::vector<int64_t> given;
  for (int64_t i = 0; i < 2'700; ++i) given.push_back(i * i % 1'000);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    Transformer model = on(kGpu, config, dtype);
    ASSERT_TRUE(Decoder::takes(model));
    const at::NoGradGuard no_grad;
    const Tensor row = at::tensor(given).unsqueeze(0);
    const Tensor whole =
        model->forward(row.to(kGpu)).select(1, -1).flatten().to(at::kCPU, at::kDouble);
    Transformer exact(config, std::nullopt, at::kDouble);
    for (size_t i = 0; i < exact->parameters().size(); ++i)
      exact->parameters()[i].copy_(model->parameters()[i]);
    const Tensor expected = exact->forward(row).select(1, -1).flatten();
    const auto error = [&](const Tensor& logits) {
      return ((logits - expected).norm() / expected.norm()).item<double>();
    };
    const double ours = error(logits_of(model, given, 2'600)), theirs = error(whole);
    EXPECT_LE(ours, dtype == at::kFloat ? 2e-6 : 1.1 * theirs) << dtype << " " << theirs;
    EXPECT_LE(ours, dtype == at::kBFloat16 ? 0.02 : 0.003);
  }
}

TEST_F(DecoderGpu, SaysThatLogitsAreNaN) {
  Transformer model = on(kGpu, sizes(4, 2, 8));
  const at::NoGradGuard no_grad;
  model->lm_head->weight[7].fill_(std::numeric_limits<float>::quiet_NaN());
  for (const double temperature : {0.0, 1.0}) {
    const GpuStream stream;
    KeyValueCache cache(model->config(), 1, 24, at::kCUDA);
    GenerateOptions options;
    options.temperature = temperature;
    Decoder decoder(model, cache, options);
    EXPECT_SAYS("got NaN for token 7", decoder.next(1, 0.5));
  }
}

TEST_F(DecoderGpu, TakesNoOtherModels) {
  Transformer model = on(at::kCPU, sizes(4, 2, 8));
  EXPECT_FALSE(Decoder::takes(model));
  for (const ModelConfig& config : {sizes(4, 2, 10), sizes(1, 1, 264)}) {
    model = on(kGpu, config);
    EXPECT_FALSE(Decoder::takes(model));
    Transformer theirs = on(at::kCPU, config);
    EXPECT_EQ(generate(model, kPrompt, tokens(30)), generate(theirs, kPrompt, tokens(30)));
  }
  model = on(kGpu, sizes(4, 2, 8), at::kDouble);
  EXPECT_FALSE(Decoder::takes(model));
  model = on(kGpu, sizes(4, 2, 8));
  EXPECT_TRUE(Decoder::takes(model));
  model->set_block_runner(recompute_blocks(1));
  EXPECT_FALSE(Decoder::takes(model));
}

}  // namespace
}  // namespace flashstep
