#include <filesystem>
#include <numeric>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/data.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// A token file whose token i is i.
class CountingFile {
 public:
  explicit CountingFile(uint32_t tokens)
      : path_(std::filesystem::temp_directory_path() / str("flashstep-batches-", ::getpid())) {
    std::vector<uint32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0u);
    TokenFileWriter writer(path_, 1 << 16);
    writer.append(ids);
    writer.commit();
  }
  ~CountingFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(BatchSampler, TargetsAreTheNextTokens) {
  const CountingFile counting(500);
  const TokenFile tokens(counting.path());
  BatchOptions options;
  options.batch_size = 5;
  options.context_length = 7;
  options.micro_steps = 2;
  for (const Order order : {Order::kRandom, Order::kEpoch, Order::kSequential}) {
    options.order = order;
    const BatchSampler sampler(tokens, options);
    for (int64_t step = 0; step < 60; ++step) {
      const Batch batch = sampler.at(step, step % 2);
      ASSERT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{5, 7}));
      ASSERT_EQ(batch.inputs.scalar_type(), at::kLong);
      ASSERT_TRUE(at::equal(batch.inputs + 1, batch.targets));
      for (int64_t row = 0; row < 5; ++row) {
        const auto start = static_cast<int64_t>(sampler.order().start(step, step % 2, row));
        ASSERT_TRUE(at::equal(batch.inputs[row], at::arange(start, start + 7)));
      }
    }
  }
}

TEST(BatchSampler, RefusesStepsThatAreNone) {
  const CountingFile counting(500);
  const TokenFile tokens(counting.path());
  BatchOptions options;
  options.context_length = 7;
  options.micro_steps = 2;
  const BatchSampler sampler(tokens, options);
  EXPECT_THROW(sampler.at(-1), UserError);
  EXPECT_THROW(sampler.at(0, -1), UserError);
  EXPECT_THROW(sampler.at(0, 2), UserError);
}

TEST(BatchSampler, RanksTogetherReadTheBatchOfOne) {
  const CountingFile counting(2000);
  const TokenFile tokens(counting.path());
  for (const Order order : {Order::kRandom, Order::kEpoch}) {
    BatchOptions options;
    options.order = order;
    options.context_length = 16;
    options.batch_size = 8;
    const BatchSampler one(tokens, options);
    for (const int64_t step : {0, 1, 77}) {
      std::vector<at::Tensor> parts;
      options.batch_size = 2;
      options.world_size = 4;
      for (options.rank = 0; options.rank < 4; ++options.rank) {
        parts.push_back(BatchSampler(tokens, options).at(step).inputs);
      }
      EXPECT_TRUE(at::equal(at::cat(parts), one.at(step).inputs));
    }
  }
}

TEST(BatchSampler, RefusesAFileShorterThanOneContext) {
  const CountingFile counting(16);
  const TokenFile tokens(counting.path());
  BatchOptions options;
  options.context_length = 16;
  EXPECT_THROW(BatchSampler(tokens, options), UserError);
  options.context_length = 15;
  EXPECT_TRUE(
      at::equal(BatchSampler(tokens, options).at(3).targets, at::arange(1, 16).unsqueeze(0)));
}

TEST(BatchSampler, NamesTheFirstIdBeyondTheVocabulary) {
  const CountingFile counting(1000);
  const TokenFile tokens(counting.path());
  BatchOptions options;
  options.order = Order::kSequential;
  options.context_length = 10;
  const BatchSampler sampler(tokens, options, 21);
  EXPECT_NO_THROW(sampler.at(1));  // ids 10 to 20, the last a target
  try {
    sampler.at(2);
    FAIL() << "accepted ids 20 to 30 of 21";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("below the vocabulary's 21, got 21 at position 21"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(BatchSampler(tokens, options).at(2));
}

}  // namespace
}  // namespace flashstep
