#include "flashstep/data/bigram.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/rng.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class Bigram : public ::testing::Test {
 protected:
  Bigram() { fs::create_directories(directory_); }
  ~Bigram() override { fs::remove_all(directory_); }

  TokenFile file(const std::vector<uint32_t>& ids, int64_t vocab_size) {
    const fs::path path = directory_ / str(count_++, ".npy");
    TokenFileWriter writer(path, vocab_size);
    writer.append(ids);
    writer.commit();
    return TokenFile(path);
  }

  const fs::path directory_ = fs::temp_directory_path() / str("flashstep-bigram-", ::getpid());
  int count_ = 0;
};

// Uniform over `choices` followers of each token, which differ from token to token.
std::vector<uint32_t> markov_chain(size_t length, uint32_t vocab_size, uint32_t choices,
                                   uint64_t seed) {
  Rng rng(seed);
  std::vector<uint32_t> ids(length);
  for (size_t i = 1; i < length; ++i) {
    ids[i] = (ids[i - 1] * 7 + 1 + static_cast<uint32_t>(rng.below(choices))) % vocab_size;
  }
  return ids;
}

TEST_F(Bigram, ReachesTheEntropyOfAMarkovChain) {
  const TokenFile train = file(markov_chain(400'000, 50, 5, 1), 50);
  const TokenFile held_out = file(markov_chain(50'000, 50, 5, 2), 50);
  const double nats = bigram_cross_entropy(train, held_out, 50);
  EXPECT_GE(nats, std::log(5.0) - 1e-3);
  EXPECT_LE(nats, std::log(5.0) + 2e-3);
}

TEST_F(Bigram, KnowsNothingAboutNoise) {
  Rng rng(3);
  std::vector<uint32_t> noise(100'000);
  for (uint32_t& id : noise) id = static_cast<uint32_t>(rng.below(64));
  const TokenFile train = file(noise, 64), held_out = file({noise.begin(), noise.begin() + 9}, 64);
  const TokenFile fresh = file(markov_chain(20'000, 64, 64, 4), 64);
  // The weights are chosen on held-in tokens, so memorised noise is not believed.
  EXPECT_NEAR(bigram_cross_entropy(train, fresh, 64), std::log(64.0), 0.01);
  EXPECT_GT(bigram_cross_entropy(train, held_out, 64), 3.5);
}

TEST_F(Bigram, PredictsACycleAndPunishesASurprise) {
  std::vector<uint32_t> cycle(20'000);
  for (size_t i = 0; i < cycle.size(); ++i) cycle[i] = static_cast<uint32_t>(i % 7);
  const TokenFile train = file(cycle, 1000);
  const TokenFile same = file({3, 4, 5, 6, 0, 1, 2, 3}, 1000);
  EXPECT_LT(bigram_cross_entropy(train, same, 1000), 0.01);
  const TokenFile never_seen = file({900, 901}, 1000);  // neither context nor token
  const double surprise = bigram_cross_entropy(train, never_seen, 1000);
  EXPECT_TRUE(std::isfinite(surprise));
  EXPECT_GT(surprise, std::log(1000.0));
}

// The formula of the header, written down directly, on a text whose tuning part shows one bucket.
TEST_F(Bigram, AgreesWithTheFormula) {
  constexpr int64_t kVocab = 2;
  std::vector<uint32_t> ids(1000);
  Rng rng(9);
  for (size_t i = 1; i < ids.size(); ++i) ids[i] = rng.below(4) == 0 ? ids[i - 1] : 1 - ids[i - 1];
  const std::vector<uint32_t> held_out = {0, 1, 0, 0, 1, 1, 0, 1};
  std::map<std::pair<uint32_t, uint32_t>, double> pairs;
  std::map<uint32_t, double> contexts, singles;
  const auto count = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ++pairs[{ids[i - 1], ids[i]}];
      ++contexts[ids[i - 1]];
      ++singles[ids[i]];
    }
  };
  ++singles[ids[0]];
  count(1, 900);
  // Both contexts have 256..511 visits, before and after the tuning part joins: one set of weights.
  ASSERT_GE(contexts[0], 256);
  ASSERT_GE(contexts[1], 256);
  ASSERT_LT(contexts[0] + 100, 512 + 50);
  double w2 = 1.0 / 3, w1 = 1.0 / 3, w0 = 1.0 / 3;
  for (int iteration = 0; iteration < 30; ++iteration) {
    double s2 = 1, s1 = 1, s0 = 1;
    for (size_t i = 900; i < 1000; ++i) {
      const double p2 = w2 * pairs[{ids[i - 1], ids[i]}] / contexts[ids[i - 1]];
      const double p1 = w1 * singles[ids[i]] / 900, p0 = w0 / kVocab;
      s2 += p2 / (p2 + p1 + p0);
      s1 += p1 / (p2 + p1 + p0);
      s0 += p0 / (p2 + p1 + p0);
    }
    w2 = s2 / 103, w1 = s1 / 103, w0 = s0 / 103;
  }
  count(900, 1000);
  double nats = 0;
  for (size_t i = 1; i < held_out.size(); ++i) {
    const uint32_t a = held_out[i - 1], b = held_out[i];
    nats -= std::log(w2 * pairs[{a, b}] / contexts[a] + w1 * singles[b] / 1000 + w0 / kVocab);
  }
  EXPECT_NEAR(bigram_cross_entropy(file(ids, kVocab), file(held_out, kVocab), kVocab), nats / 7,
              1e-12);
}

TEST_F(Bigram, HandlesTheLargestVocabularyOfUint16) {
  Rng rng(5);
  std::vector<uint32_t> ids(300'000);
  for (uint32_t& id : ids) {
    const uint64_t wide = rng.below(65536);
    id = static_cast<uint32_t>(wide * wide >> 16);
  }
  ids[1] = 65535;
  const TokenFile train = file(ids, 65536);
  const TokenFile held_out = file({ids.begin(), ids.begin() + 10'000}, 65536);
  const double nats = bigram_cross_entropy(train, held_out, 65536);
  EXPECT_GT(nats, 8);
  EXPECT_LT(nats, std::log(65536.0));
}

TEST_F(Bigram, RefusesWhatItCannotCount) {
  const TokenFile short_train = file(std::vector<uint32_t>(19), 4), one = file({1}, 4);
  const TokenFile train = file(std::vector<uint32_t>(20, 3), 4);
  EXPECT_THROW(bigram_cross_entropy(short_train, train, 4), UserError);
  EXPECT_THROW(bigram_cross_entropy(train, one, 4), UserError);
  EXPECT_THROW(bigram_cross_entropy(train, train, 3), UserError);
  EXPECT_NEAR(bigram_cross_entropy(train, train, 4), 0, 0.5);
}

}  // namespace
}  // namespace flashstep
