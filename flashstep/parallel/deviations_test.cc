// Steps that are not as the first was, and ranks that are about to reduce different things: what
// every strategy says of them.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::same_bits;
using torch::Tensor;

// Two parameters that could be taken for each other, and what reduces them.
struct Pair {
  std::vector<Tensor> parameters = {torch::ones({4}).requires_grad_(),
                                    torch::ones({4}).requires_grad_()};
  GradientReducer reducer;

  Pair(const Group& group, const ReducerOptions& options)
      : reducer(parameters, group, options, {"a", "b"}) {}

  // Forgets gradients, then adds 1 to that of each as many times as said.
  void backward(int times_a, int times_b) {
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
    add(parameters[0], times_a);
    add(parameters[1], times_b);
  }
  static void add(const Tensor& parameter, int times) {
    for (int i = 0; i < times; ++i) parameter.sum().backward();
  }
  void finish() { reducer.finish_gradient_synchronization(); }
  void expect_gradients(double a, double b) const {
    EXPECT_TRUE(same_bits(parameters[0].grad(), torch::full({4}, a)));
    EXPECT_TRUE(same_bits(parameters[1].grad(), torch::full({4}, b)));
  }
};

// On so many ranks every strategy, in buckets of one parameter and of both; `more` options.
using Body = void(const Group&, const ReducerOptions&);
void for_all(int ranks, const std::function<Body>& body, const ReducerOptions& more = {}) {
  on_ranks(ranks, [&](const Group& group) {
    for (const Strategy strategy : own_strategies()) {
      for (const double megabytes : {1e-6, 1.0}) {
        SCOPED_TRACE(str(strategy_name(strategy), ", ", megabytes, " MB"));
        ReducerOptions options = more;
        options.strategy = strategy;
        options.bucket_megabytes = megabytes;
        body(group, options);
      }
    }
  });
}

const ReducerOptions kUnused{.allow_unused = true}, kDebug{.debug = true},
    kUnusedDebug{.allow_unused = true, .debug = true};

TEST(Ranks, FewerPiecesThanInTheFirstStepAreNamedOnAll) {
  for_all(3, [](const Group& group, const ReducerOptions& options) {
    Pair pair(group, options);
    for (int step = 0; step < 2; ++step) {
      pair.backward(2, 1);
      pair.finish();
      pair.expect_gradients(2, 1);
    }
    pair.backward(group.rank() == 1 ? 1 : 2, 1);
    expect_sentence([&] { pair.finish(); }, {"1 of 2 pieces", "of a", "on rank 1"});
  });
}

void expect_more_is_refused(const Group& group, const ReducerOptions& options,
                            const std::vector<std::string>& at_the_end) {
  Pair pair(group, options);
  pair.backward(2, 1);
  pair.finish();
  expect_sentence([&] { pair.backward(3, 1); }, {"of a to come 2 times", "came again"});
  expect_sentence([&] { pair.finish(); }, at_the_end);
}

TEST(Ranks, MorePiecesThanInTheFirstStepAreRefused) {
  for_all(2, [](const Group& group, const ReducerOptions& options) {
    expect_more_is_refused(group, options, {"of a to come 2 times", "came again on rank 0"});
  });
  // Where parameters may be unused, ranks tell each other nothing at a step's end.
  for_all(
      2,
      [](const Group& group, const ReducerOptions& options) {
        expect_more_is_refused(group, options, {"one that failed"});
      },
      kUnused);
}

// One rank's gradients of a step, of which a's should come twice and b's once.
struct Odd {
  int times_a, times_b;
  std::vector<std::string> words;
};

// Ranks that all hear of it drop the step and go on, whichever strategy they have.
void expect_next_step_is_taken(const Group& group, const ReducerOptions& options) {
  const std::string missing = options.debug ? "on some ranks for b" : "none for b on rank 1";
  const std::vector<Odd> odd_steps = {
      {2, 0, {missing}}, {1, 1, {"1 of 2 pieces", "on rank 1"}}, {0, 0, {"none"}}};
  Pair pair(group, options);
  const auto right_step = [&](int times_a) {
    pair.backward(times_a, 1);
    pair.finish();
    pair.expect_gradients(times_a, 1);
  };
  // The first step, before anything is sent; it is not what later ones are compared with.
  pair.backward(2, group.is_first() ? 1 : 0);
  expect_sentence([&] { pair.finish(); }, {"on some ranks for b"});
  right_step(2);
  for (const Odd& odd : odd_steps) {
    right_step(2);
    if (group.is_first()) {
      pair.backward(2, 1);
    } else {
      pair.backward(odd.times_a, odd.times_b);
    }
    expect_sentence([&] { pair.finish(); }, odd.words);
    right_step(2);
  }
  const auto more = [&] {
    if (group.is_first()) {
      pair.backward(2, 1);
    } else {
      expect_sentence([&] { pair.backward(3, 1); }, {"came again on rank 1"});
      Pair::add(pair.parameters[1], 1);
    }
    expect_sentence([&] { pair.finish(); }, {"came again on rank 1"});
  };
  more();
  right_step(2);
  more();
  pair.reducer.record_again();
  right_step(3);
  right_step(3);
}

TEST(Ranks, ARefusedStepIsFollowedByARightOne) {
  for_all(2, expect_next_step_is_taken);
  for_all(2, expect_next_step_is_taken, kDebug);
}

// Nothing was sent before its last piece, so the mean is right.
TEST(Ranks, FewerPiecesAreTakenWhereParametersMayBeUnused) {
  for_all(
      2,
      [](const Group& group, const ReducerOptions& options) {
        Pair pair(group, options);
        pair.backward(2, 1);
        pair.finish();
        pair.backward(group.is_first() ? 2 : 1, 1);
        pair.finish();
        pair.expect_gradients(1.5, 1);
        pair.backward(group.is_first() ? 0 : 2, 1);
        pair.finish();
        pair.expect_gradients(1, 1);
      },
      kUnused);
}

// What comes under no_sync is not counted, nor a gradient that no backward gave.
TEST(Ranks, AccumulationIsNoDeviation) {
  for_all(2, [](const Group& group, const ReducerOptions& options) {
    Pair pair(group, options);
    for (const int micro_steps : {2, 4, 1, 3}) {
      pair.backward(0, 0);
      if (micro_steps > 1) {
        const auto no_sync = pair.reducer.no_sync();
        Pair::add(pair.parameters[0], 2 * (micro_steps - 1));
        Pair::add(pair.parameters[1], micro_steps - 1);
      }
      Pair::add(pair.parameters[0], 2);
      Pair::add(pair.parameters[1], 1);
      pair.finish();
      pair.expect_gradients(2 * micro_steps, micro_steps);
    }
    for (const Tensor& parameter : pair.parameters) parameter.mutable_grad() = torch::ones({4});
    pair.finish();
    pair.expect_gradients(1, 1);
  });
}

TEST(Ranks, RecordAgainTakesAnotherCount) {
  for_all(2, [](const Group& group, const ReducerOptions& options) {
    Pair pair(group, options);
    for (const int times : {2, 1, 3}) {
      pair.reducer.record_again();
      for (int step = 0; step < 2; ++step) {
        pair.backward(times, 1);
        pair.finish();
        pair.expect_gradients(times, 1);
      }
    }
  });
}

// --- debug -------------------------------------------------------------------------------------

// Parameters of one shape in another order: without the comparison a's mean would be half b's.
void expect_order_is_compared(const Group& group, const ReducerOptions& options) {
  for (const int steps_before : {0, 2}) {
    Pair pair(group, options);
    for (int step = 0; step < steps_before; ++step) {
      pair.backward(1, 2);
      pair.finish();
      pair.expect_gradients(1, 2);
    }
    pair.reducer.set_bucket_order(group.rank() == 2 ? std::vector<int64_t>{1, 0}
                                                    : std::vector<int64_t>{0, 1});
    pair.backward(1, 2);
    expect_sentence([&] { pair.finish(); },
                    {"bucket 1 of", "a of shape [4]", "on rank 0", "b of shape [4]", "on rank 2"});
    pair.expect_gradients(1, 2);  // as backward gave them: nothing was sent
  }
}

void expect_shapes_are_compared(const Group& group, const ReducerOptions& options) {
  Pair pair(group, options);
  pair.backward(1, 1);
  pair.finish();
  if (group.rank() == 1) pair.parameters[1].set_data(torch::ones({2, 2}));
  pair.backward(1, 1);
  expect_sentence([&] { pair.finish(); },
                  {"b of shape [4]", "on rank 0", "b of shape [2, 2]", "on rank 1"});
}

void expect_first_steps_are_compared(const Group& group, const ReducerOptions& options) {
  Pair pair(group, options);
  pair.backward(1, 1);
  pair.finish();
  if (group.rank() == 1) pair.reducer.record_again();
  pair.backward(1, 1);
  expect_sentence([&] { pair.finish(); }, {"first step, bucket 1 of", "on rank 1"});
}

TEST(Ranks, DebugComparesWhatIsAboutToBeReduced) {
  for (const ReducerOptions& compared : {kDebug, kUnusedDebug}) {
    const auto compares = [](const Group& group, const ReducerOptions& options) {
      expect_order_is_compared(group, options);
      expect_shapes_are_compared(group, options);
      expect_first_steps_are_compared(group, options);
    };
    for_all(3, compares, compared);
  }
}

// In a later step, too, it is named before anything is sent: who gives it then can go on.
TEST(Ranks, DebugNamesMissingGradientsBeforeAnythingIsSent) {
  for_all(
      2,
      [](const Group& group, const ReducerOptions& options) {
        Pair pair(group, options);
        for (int step = 0; step < 3; ++step) {
          pair.backward(1, group.is_first() ? 1 : 0);
          expect_sentence([&] { pair.finish(); }, {"on some ranks for b"});
          EXPECT_TRUE(same_bits(pair.parameters[0].grad(), torch::ones({4})));
          if (!group.is_first()) Pair::add(pair.parameters[1], 1);
          pair.finish();
          pair.expect_gradients(1, 1);
        }
      },
      kDebug);
}

}  // namespace
}  // namespace flashstep
