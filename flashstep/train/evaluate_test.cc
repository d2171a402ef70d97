#include "flashstep/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/ops.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr int64_t kVocab = 11;

class EvaluateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / flashstep::str("evaluate_test_", ::getpid(), ".npy");
    torch::manual_seed(2);
    table_ = torch::randn({kVocab, kVocab});
  }
  void TearDown() override { fs::remove(path_); }

  TokenFile write(int64_t size) {
    ids_.clear();
    for (int64_t i = 0; i < size; ++i)
      ids_.push_back(static_cast<uint32_t>((i * i + 3 * i) % kVocab));
    TokenFileWriter writer(path_, kVocab);
    writer.append(ids_);
    writer.commit();
    return TokenFile(path_);
  }
  // A model whose prediction depends on the last token only: windows cannot change its loss.
  TokenLoss model() const {
    return [this](const Tensor& ids, const Tensor& targets) {
      return cross_entropy(table_.index({ids}), targets);
    };
  }
  double expected(size_t size) const {
    const Tensor log_probabilities = table_.to(torch::kDouble).log_softmax(1);
    double sum = 0;
    for (size_t i = 1; i < size; ++i) sum -= log_probabilities[ids_[i - 1]][ids_[i]].item<double>();
    return sum / static_cast<double>(size - 1);
  }

  fs::path path_;
  Tensor table_;
  std::vector<uint32_t> ids_;
};

TEST_F(EvaluateTest, PredictsEveryTokenOnceWhateverTheWindows) {
  for (const int64_t size : {2, 7, 8, 9, 33, 100}) {
    const TokenFile tokens = write(size);
    for (const int64_t context : {1, 4, 8}) {
      for (const int64_t batch : {1, 3}) {
        EvaluateOptions options{.batch_size = batch, .context_length = context};
        uint64_t last = 0;
        options.progress = [&](uint64_t done, uint64_t total) {
          EXPECT_GT(done, last);
          EXPECT_EQ(total, static_cast<uint64_t>(size - 1));
          last = done;
        };
        EXPECT_NEAR(evaluate_loss(model(), tokens, options), expected(ids_.size()), 1e-6) << size;
        EXPECT_EQ(last, static_cast<uint64_t>(size - 1));
      }
    }
  }
}

TEST_F(EvaluateTest, ReadsOnlyTheFirstTokensIfAsked) {
  const TokenFile tokens = write(100);
  EXPECT_NEAR(
      evaluate_loss(model(), tokens, {.batch_size = 2, .context_length = 8, .max_tokens = 31}),
      expected(31), 1e-6);
  EXPECT_NEAR(
      evaluate_loss(model(), tokens, {.batch_size = 2, .context_length = 8, .max_tokens = 1000}),
      expected(100), 1e-6);
}

TEST_F(EvaluateTest, RefusesWhatHasNothingToPredict) {
  EXPECT_THROW(evaluate_loss(model(), write(1), {}), UserError);
}

TEST_F(EvaluateTest, NamesIdsBeyondTheVocabularyAmongThoseItReads) {
  const TokenFile tokens = write(100);
  EvaluateOptions options{.batch_size = 2, .context_length = 8, .vocab_size = kVocab};
  EXPECT_NO_THROW(evaluate_loss(model(), tokens, options));
  options.vocab_size = 10;
  const auto at = std::find(ids_.begin(), ids_.end(), 10u) - ids_.begin();
  ASSERT_LT(at, 100);
  try {
    evaluate_loss(model(), tokens, options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with(flashstep::str("at position ", at)))
        << error.what();
  }
  options.max_tokens = static_cast<uint64_t>(at);
  EXPECT_NO_THROW(evaluate_loss(model(), tokens, options));
}

// More ranks than batches, fewer, and as many: the value of one process, bit for bit, on every
// rank.
TEST_F(EvaluateTest, RanksShareTheBatches) {
  for (const int world_size : {2, 3}) {
    flashstep::testing::run_ranks(world_size, [&](const Environment& environment) {
      const Group group(environment);
      for (const int64_t size : {2, 33, 100}) {
        const TokenFile tokens = write(size);
        EvaluateOptions options{.batch_size = 2, .context_length = 8};
        const double alone = evaluate_loss(model(), tokens, options);
        options.group = &group;
        EXPECT_EQ(evaluate_loss(model(), tokens, options), alone);
      }
      TearDown();  // the process ends here
    });
  }
}

}  // namespace
}  // namespace flashstep
