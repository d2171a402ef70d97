#include "flashstep/base/rng.h"

#include <vector>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

// Known answers published with the paper's code (Random123, kat_vectors, philox4x32 with 10
// rounds).
TEST(RngTest, PhiloxGivesThePublishedAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ull),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngTest, PositionIsAllOfTheState) {
  Rng rng(7, 3);
  std::vector<uint64_t> drawn;
  for (int i = 0; i < 9; ++i) drawn.push_back(rng.next_u64());
  for (uint64_t from = 0; from < 9; ++from) {
    Rng resumed(7, 3, from);
    for (uint64_t i = from; i < 9; ++i) EXPECT_EQ(resumed.next_u64(), drawn[i]);
  }
  EXPECT_NE(Rng(7, 4).next_u64(), drawn[0]);
  EXPECT_NE(Rng(8, 3).next_u64(), drawn[0]);
}

TEST(RngTest, BelowIsUniformAndInRange) {
  Rng rng(1);
  EXPECT_EQ(rng.below(1), 0u);
  constexpr int kDraws = 70'000;
  std::vector<int> counts(7);
  for (int i = 0; i < kDraws; ++i) ++counts.at(rng.below(7));
  // 10,000 expected each; 5 standard deviations of the binomial are 463.
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 463);
  const uint64_t huge = (1ull << 63) + 1;  // half of all products are redrawn
  for (int i = 0; i < 100; ++i) EXPECT_LT(rng.below(huge), huge);
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.uniform();
    ASSERT_TRUE(x >= 0 && x < 1);
    sum += x;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / 264.6);  // 5 sigma / sqrt(draws)
}

}  // namespace
}  // namespace flashstep
