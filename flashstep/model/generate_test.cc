// Generation, with and without a cache.
#include "flashstep/model/generate.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/test_tiny.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using testing::tiny;

TEST(KeyValueCache, GivesTheLogitsOfTheWholeSequence) {
  Transformer model(tiny(), 1);
  const at::NoGradGuard no_grad;
  const auto tokens = torch::randint(61, {2, 24});
  for (const std::string attention : {"naive", "sdpa", "auto", "grouped", "window"}) {
    auto config = tiny();
    if (attention == "grouped") {
      config.num_kv_heads = 2;
    } else if (attention == "window") {
      config.window = 5;
    } else {
      config.attention = attention;
    }
    Transformer cached(config, 1);
    if (attention == "grouped" || attention == "window") model = Transformer(config, 1);
    const auto expected = model->forward(tokens);
    for (const std::vector<int64_t>& parts :
         {std::vector<int64_t>{24}, {1, 1, 22}, {10, 5, 9}, {23, 1}}) {
      KeyValueCache cache(config, 2, 24, at::kFloat);
      int64_t begin = 0;
      for (const int64_t length : parts) {
        const auto logits = cached->forward(tokens.narrow(1, begin, length), cache);
        EXPECT_TRUE(testing::close(logits, expected.narrow(1, begin, length), 2e-5))
            << attention << " from " << begin;
        begin += length;
      }
    }
  }
}

TEST(KeyValueCache, IsOfOneBatch) {
  Transformer model(tiny(), 1);
  KeyValueCache cache(tiny(), 2, 24, at::kFloat);
  for (const int64_t batch : {1, 3}) {
    EXPECT_SAYS(str("[model] expected tokens of B = 2 sequences as the cache has, got ", batch),
                model->forward(torch::zeros({batch, 3}, at::kLong), cache));
  }
  EXPECT_EQ(cache.length(), 0);
}

TEST(KeyValueCache, IsOfOneModel) {
  Transformer model(tiny(), 1);
  for (const auto& [layers, heads] : {std::pair(2, 4), std::pair(4, 4), std::pair(3, 2)}) {
    ModelConfig other = tiny();
    other.num_layers = layers;
    other.num_heads = heads;
    KeyValueCache cache(other, 2, 24, at::kFloat);
    EXPECT_SAYS(str("of 3 layers, 4 heads and head_dim 6, got one of ", layers, ", ", heads),
                model->forward(torch::zeros({2, 3}, at::kLong), cache));
  }
}

TEST(KeyValueCache, IsAsItWasWhenARunFails) {
  Transformer model(tiny(), 1);
  const at::NoGradGuard no_grad;
  const auto tokens = torch::randint(61, {2, 9});
  KeyValueCache cache(tiny(), 2, 24, at::kFloat);
  model->forward(tokens.narrow(1, 0, 4), cache);
  model->set_block_runner([](std::span<const BlockCall> blocks, const at::Tensor& x) -> at::Tensor {
    run_blocks_in_order(blocks.first(2), x);
    throw MachineError("no memory");
  });
  EXPECT_THROW(model->forward(tokens.narrow(1, 4, 3), cache), MachineError);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(cache.layer(i).length, 4);
  model->set_block_runner(run_blocks_in_order);
  EXPECT_TRUE(testing::close(model->forward(tokens.narrow(1, 4, 5), cache),
                             model->forward(tokens).narrow(1, 4, 5), 2e-5));
}

TEST(Generate, CachedAndUncachedAgreeBeyondTheContext) {
  Transformer model(tiny(), 1);
  const std::vector<int64_t> prompt = {3, 1, 4};
  GenerateOptions options;
  options.max_tokens = 60;  // 24 fit
  options.seed = 5;
  const auto cached = generate(model, prompt, options);
  options.use_cache = false;
  EXPECT_EQ(generate(model, prompt, options), cached);
  EXPECT_EQ(cached.size(), 60u);
  options.seed = 6;
  EXPECT_NE(generate(model, prompt, options), cached);
}

TEST(Generate, TheCacheHasRoomForAShortText) {
  Transformer model(tiny(), 1);
  const std::vector<int64_t> prompt = {3, 1, 4};
  for (const int64_t tokens : {0, 1, 5, 21}) {  // 24 fit
    GenerateOptions options;
    options.max_tokens = tokens;
    const auto cached = generate(model, prompt, options);
    options.use_cache = false;
    EXPECT_EQ(generate(model, prompt, options), cached) << tokens;
  }
}

TEST(Generate, SeesAsMuchOfALongPromptAsItCan) {
  Transformer model(tiny(), 1);
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 61; ++i) prompt.push_back(i * i % 61);
  const std::vector<int64_t> last(prompt.end() - 24, prompt.end());  // 24 fit
  GenerateOptions options;
  options.max_tokens = 30;
  for (const bool use_cache : {true, false}) {
    options.use_cache = use_cache;
    EXPECT_EQ(generate(model, prompt, options), generate(model, last, options));
  }
}

TEST(Generate, ForgetsADocumentThatEnded) {
  ModelConfig config = tiny();
  config.document_end = 9;
  Transformer model(config, 1);
  GenerateOptions options;
  options.max_tokens = 60;
  for (const bool use_cache : {true, false}) {
    options.use_cache = use_cache;
    EXPECT_EQ(generate(model, std::vector<int64_t>{3, 9, 1, 9, 4, 8}, options),
              generate(model, std::vector<int64_t>{4, 8}, options));
    EXPECT_NE(generate(model, std::vector<int64_t>{3, 9}, options),
              generate(model, std::vector<int64_t>{9}, options))
        << "the last token is seen, whatever it is";
  }
}

TEST(Generate, StopsAtTheTokenOrWhenTold) {
  Transformer model(tiny(), 1);
  GenerateOptions options;
  options.max_tokens = 20;
  const std::vector<int64_t> prompt = {1};
  const auto all = generate(model, prompt, options);
  options.stop_token = all[7];
  const auto first = std::find(all.begin(), all.end(), all[7]);
  EXPECT_EQ(generate(model, prompt, options), std::vector<int64_t>(all.begin(), first));
  options.stop_token.reset();
  std::vector<int64_t> streamed;
  options.on_token = [&](int64_t token) {
    streamed.push_back(token);
    return streamed.size() < 4;
  };
  EXPECT_EQ(generate(model, prompt, options), streamed);
  EXPECT_EQ(streamed, std::vector<int64_t>(all.begin(), all.begin() + 4));
  options.max_tokens = 0;
  EXPECT_TRUE(generate(model, prompt, options).empty());
}

TEST(Generate, SamplesAsTheOptionsSay) {
  const std::vector<float> logits = {0.f, std::log(4.f), std::log(2.f), std::log(3.f)};  // 1 4 2 3
  GenerateOptions options;
  const auto draw = [&](double u) { return sample(logits, options, u); };
  EXPECT_EQ(draw(0.0), 1);  // likeliest first: 1 up to .4, 3 up to .7, 2 up to .9, 0
  EXPECT_EQ(draw(0.39), 1);
  EXPECT_EQ(draw(0.41), 3);
  EXPECT_EQ(draw(0.71), 2);
  EXPECT_EQ(draw(0.95), 0);
  options.top_k = 2;
  EXPECT_EQ(draw(0.56), 1);  // 4/7
  EXPECT_EQ(draw(0.99), 3);
  options.top_k = 0;
  options.top_p = 0.5;
  EXPECT_EQ(draw(0.99), 3);
  options.top_p = 1e-9;
  EXPECT_EQ(draw(0.99), 1);
  options.top_p = 1;
  options.temperature = 0;
  EXPECT_EQ(draw(0.99), 1);
  options.temperature = 0.5;  // squares: 16 9 4 1 of 30
  EXPECT_EQ(draw(0.52), 1);
  EXPECT_EQ(draw(0.54), 3);
}

// The whole vocabulary sorted, its probabilities added up from the likeliest on.
int64_t sample_of_all(const at::Tensor& logits, const GenerateOptions& options, double uniform) {
  auto [sorted, ids] = (logits.to(at::kDouble) / options.temperature).sort(true, 0, true);
  if (options.top_k > 0) sorted = sorted.narrow(0, 0, options.top_k);
  auto sums = sorted.softmax(0).cumsum(0);
  if (options.top_p < 1) {
    const int64_t count = (sums < options.top_p).sum().item<int64_t>() + 1;
    sums = sums.narrow(0, 0, count) / sums[count - 1];
  }
  return ids[(sums <= uniform).sum().item<int64_t>()].item<int64_t>();
}

TEST(Generate, SamplesAsIfAllWereSorted) {
  torch::manual_seed(4);
  const at::Tensor logits = (torch::randn({5000}) * 3).mul(8).round().div(8);  // with ties
  const std::span<const float> values(logits.data_ptr<float>(), 5000);
  for (const double temperature : {0.5, 1.0, 3.0}) {
    for (const int64_t top_k : {0, 1, 40, 4999}) {
      for (const double top_p : {1.0, 0.9, 0.1}) {
        GenerateOptions options;
        options.temperature = temperature;
        options.top_k = top_k;
        options.top_p = top_p;
        for (const double uniform : {0.0, 0.113, 0.51, 0.873, 0.9991})
          EXPECT_EQ(sample(values, options, uniform), sample_of_all(logits, options, uniform))
              << temperature << " " << top_k << " " << top_p << " " << uniform;
      }
    }
  }
}

TEST(Generate, LogitsMayBeInfiniteButNotNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  GenerateOptions options;
  EXPECT_EQ(sample(std::vector<float>{-inf, 1, -inf}, options, 0.999), 1);
  EXPECT_EQ(sample(std::vector<float>{0, inf, 0}, options, 0.999), 1);
  for (const double temperature : {0.0, 1.0}) {
    options.temperature = temperature;
    EXPECT_SAYS("expected numbers as the model's logits, got NaN for token 2",
                sample(std::vector<float>{0, 1, std::nanf("")}, options, 0.5));
  }
}

TEST(Generate, NamesWhatIsWrong) {
  Transformer model(tiny(), 1);
  const std::vector<int64_t> none, good = {1}, outside = {61};
  const auto with = [](auto change) {
    GenerateOptions options;
    change(options);
    return options;
  };
  EXPECT_SAYS("prompt of at least one token", generate(model, none, {}));
  EXPECT_SAYS("token ids in [0, 61), got 61", generate(model, outside, {}));
  EXPECT_SAYS("temperature >= 0", generate(model, good, with([](auto& o) { o.temperature = -1; })));
  EXPECT_SAYS("top_k >= 0", generate(model, good, with([](auto& o) { o.top_k = -1; })));
  EXPECT_SAYS("top_p in (0, 1]", generate(model, good, with([](auto& o) { o.top_p = 0; })));
  EXPECT_SAYS("max_tokens >= 0", generate(model, good, with([](auto& o) { o.max_tokens = -1; })));
}

}  // namespace
}  // namespace flashstep
