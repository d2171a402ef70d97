#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/data.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// Starts of all rows that all ranks read in `steps` steps, in the order of their numbers.
std::vector<uint64_t> starts(uint64_t tokens, BatchOptions options, int64_t steps,
                             int64_t first_step = 0) {
  std::vector<uint64_t> result;
  for (int64_t step = first_step; step < first_step + steps; ++step) {
    for (int64_t micro = 0; micro < options.micro_steps; ++micro) {
      for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
        const BatchOrder order(tokens, options, "corpus");
        for (int64_t row = 0; row < options.batch_size; ++row) {
          result.push_back(order.start(step, micro, row));
        }
      }
    }
  }
  return result;
}

BatchOptions with(Order order, int64_t batch, int64_t context, int64_t world = 1,
                  int64_t micro_steps = 1) {
  BatchOptions options;
  options.order = order;
  options.batch_size = batch;
  options.context_length = context;
  options.world_size = world;
  options.micro_steps = micro_steps;
  options.seed = 42;
  return options;
}

constexpr Order kOrders[] = {Order::kRandom, Order::kEpoch, Order::kSequential};

TEST(Permutation, IsOneForEverySmallSizeAndSomeLargeOnes) {
  std::vector<uint64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const uint64_t size : {1000, 1024, 10007, 65537}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    const Permutation permutation(size, 7, size);
    std::vector<bool> seen(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << image << " twice for size " << size;
      seen[image] = true;
    }
  }
}

TEST(Permutation, RefusesSizesThatItCannotCount) {
  EXPECT_THROW(Permutation(0, 1, 2), UserError);
  EXPECT_THROW(Permutation(~0ull, 1, 2), UserError);
  const uint64_t largest = 1ull << 63;
  EXPECT_LT(Permutation(largest, 1, 2)(largest - 1), largest);
}

TEST(Permutation, HandlesSizesBeyond32Bits) {
  const uint64_t size = (1ull << 40) + 12345;
  const Permutation permutation(size, 1, 2);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t image = permutation(size - 1 - i);
    ASSERT_LT(image, size);
    seen.insert(image);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Permutation, DependsOnSeedAndStreamAndMixes) {
  constexpr uint64_t kSize = 10000;
  const Permutation a(kSize, 1, 0), b(kSize, 2, 0), c(kSize, 1, 1);
  int same_b = 0, same_c = 0, fixed = 0, ascending = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    same_b += a(i) == b(i);
    same_c += a(i) == c(i);
    fixed += a(i) == i;
    ascending += i > 0 && a(i) > a(i - 1);
  }
  // Each of the first three counts is Poisson with mean 1; the last has mean 5000, deviation 29.
  EXPECT_LT(same_b, 10);
  EXPECT_LT(same_c, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_NEAR(ascending, 5000, 150);
}

TEST(BatchOrder, FourRanksReadWhatOneReads) {
  for (const Order order : kOrders) {
    const auto one = starts(5000, with(order, 12, 16), 40);
    EXPECT_EQ(starts(5000, with(order, 3, 16, 4), 40), one);
    EXPECT_EQ(starts(5000, with(order, 3, 16, 1, 4), 40), one);
    EXPECT_EQ(starts(5000, with(order, 3, 16, 2, 2), 40), one);
  }
}

TEST(BatchOrder, IsAPureFunctionOfTheStep) {
  for (const Order order : kOrders) {
    const auto whole = starts(3000, with(order, 4, 32, 2), 50);
    const auto resumed = starts(3000, with(order, 4, 32, 2), 20, 30);
    EXPECT_EQ(std::vector<uint64_t>(whole.begin() + 30 * 8, whole.end()), resumed);
  }
}

TEST(BatchOrder, SeedsDiffer) {
  for (const Order order : {Order::kRandom, Order::kEpoch}) {
    BatchOptions other = with(order, 8, 16);
    other.seed = 43;
    EXPECT_NE(starts(50000, with(order, 8, 16), 10), starts(50000, other, 10));
  }
}

TEST(BatchOrder, EpochVisitsEachWindowOnce) {
  for (const uint64_t tokens : {17u, 31u, 32u, 33u, 47u, 48u, 49u, 1000u, 1600u, 1601u}) {
    constexpr uint64_t kContext = 16;
    const BatchOptions options = with(Order::kEpoch, 1, kContext);
    const BatchOrder order(tokens, options, "corpus");
    ASSERT_EQ(order.windows(), std::max<uint64_t>(1, tokens / kContext - 1));
    std::set<uint64_t> offsets, orders_of_first;
    for (uint64_t epoch = 0; epoch < 40; ++epoch) {
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < order.windows(); ++i) {
        const uint64_t start = order.start(static_cast<int64_t>(epoch * order.windows() + i), 0, 0);
        ASSERT_LE(start + kContext + 1, tokens);
        seen.insert(start);
      }
      // As many different places as windows, all at one offset: nothing twice, nothing left out.
      ASSERT_EQ(seen.size(), order.windows());
      for (const uint64_t start : seen) ASSERT_EQ(start % kContext, *seen.begin() % kContext);
      ASSERT_EQ(*seen.rbegin() - *seen.begin(), (order.windows() - 1) * kContext);
      offsets.insert(*seen.begin());
      orders_of_first.insert(order.start(static_cast<int64_t>(epoch * order.windows()), 0, 0));
    }
    if (tokens >= 2 * kContext) {
      EXPECT_GT(offsets.size(), 8u);
    }
    if (tokens >= 1000) {
      EXPECT_GT(orders_of_first.size(), 30u);
    }
  }
}

TEST(BatchOrder, SequentialCoversTheFileFromItsBeginning) {
  const BatchOrder order(101, with(Order::kSequential, 2, 10), "corpus");
  EXPECT_EQ(order.windows(), 10u);
  EXPECT_EQ(order.start(0, 0, 0), 0u);
  EXPECT_EQ(order.start(4, 0, 1), 90u);  // its last target is token 100
  EXPECT_EQ(order.start(5, 0, 0), 0u);
}

TEST(BatchOrder, RandomReachesEveryPlaceUniformly) {
  constexpr uint64_t kPlaces = 20;
  const auto drawn = starts(kPlaces + 8, with(Order::kRandom, 100, 8), 200);
  std::vector<int> count(kPlaces, 0);
  for (const uint64_t start : drawn) {
    ASSERT_LT(start, kPlaces);
    ++count[start];
  }
  // 20,000 draws: mean 1000, deviation 31.
  for (const int n : count) EXPECT_NEAR(n, 1000, 160);
}

TEST(BatchOrder, RefusesACorpusShorterThanOneContext) {
  for (const Order order : kOrders) {
    EXPECT_NO_THROW(BatchOrder(17, with(order, 1, 16), "corpus"));
    try {
      BatchOrder(16, with(order, 1, 16), "corpus.npy");
      FAIL() << "16 tokens were accepted";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "[corpus.npy] expected at least 17 tokens (one context of 16 and the token "
                   "after it), got 16");
    }
    EXPECT_THROW(BatchOrder(0, with(order, 1, 1), "corpus"), UserError);
  }
}

TEST(BatchOrder, RefusesOptionsWithoutSense) {
  const auto refused = [](auto change) {
    BatchOptions options = with(Order::kRandom, 2, 4);
    change(options);
    EXPECT_THROW(BatchOrder(100, options, "corpus"), UserError);
  };
  refused([](BatchOptions& o) { o.batch_size = 0; });
  refused([](BatchOptions& o) { o.context_length = 0; });
  refused([](BatchOptions& o) { o.micro_steps = 0; });
  refused([](BatchOptions& o) { o.rank = 1; });
  refused([](BatchOptions& o) { o.rank = -1; });
  refused([](BatchOptions& o) { o.world_size = 0; });
  EXPECT_EQ(order_by_name("epoch"), Order::kEpoch);
  EXPECT_EQ(order_by_name("random"), Order::kRandom);
  EXPECT_EQ(order_by_name("sequential"), Order::kSequential);
  EXPECT_THROW(order_by_name("shuffled"), UserError);
}

// The numbers themselves: a run that is resumed under a later version must read the same rows.
TEST(BatchOrder, StaysWhatItIs) {
  EXPECT_EQ(starts(1000, with(Order::kRandom, 6, 10), 1),
            (std::vector<uint64_t>{606, 9, 394, 39, 154, 477}));
  EXPECT_EQ(starts(1000, with(Order::kEpoch, 6, 10), 1),
            (std::vector<uint64_t>{375, 485, 145, 575, 965, 905}));
}

}  // namespace
}  // namespace flashstep
