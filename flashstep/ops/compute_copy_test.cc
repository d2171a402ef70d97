#include "flashstep/ops/compute_copy.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using at::Tensor;

const std::shared_ptr<void> kWriter = std::make_shared<char>();

// What an optimizer does: it writes parameter and copy, and their versions tell.
void update(const Tensor& parameter, double value, const std::shared_ptr<void>& writer = kWriter) {
  const at::NoGradGuard no_grad;
  const Tensor copy = internal::copy_written_with(parameter);
  parameter.fill_(value);
  if (copy.defined()) copy.fill_(value + 1);  // told apart from a cast
  internal::copy_is_written(parameter, copy, writer);
}

double first_of(const Tensor& parameter) {
  return compute_copy(parameter, at::kBFloat16).flatten()[0].item<double>();
}

TEST(ComputeCopy, HoldsNeighboursOneBehindTheOther) {
  const Tensor a = torch::randn({3, 4}).requires_grad_(), b = torch::randn({5, 4});
  const Tensor both = compute_copy({a, b}, at::kBFloat16);
  EXPECT_TRUE(testing::same_bits(both, at::cat({a, b}).detach().to(at::kBFloat16)));
  EXPECT_FALSE(both.requires_grad());
  // Another grouping, or dtype, is another copy with the same values.
  EXPECT_TRUE(testing::same_bits(compute_copy({b, a}, at::kBFloat16),
                                 at::cat({b, a}).detach().to(at::kBFloat16)));
  EXPECT_TRUE(
      testing::same_bits(compute_copy({a, b}, at::kHalf), at::cat({a, b}).detach().to(at::kHalf)));
  EXPECT_EQ(compute_copy(b, at::kFloat).data_ptr(), b.data_ptr());
}

TEST(ComputeCopy, OfAParameterTwiceIsTwoCopies) {
  const Tensor a = torch::randn({3, 4}), b = torch::randn({5, 4});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(testing::same_bits(compute_copy({a, b, a}, at::kBFloat16),
                                   at::cat({a, b, a}).to(at::kBFloat16)));
    a.fill_(5);
  }
}

TEST(ComputeCopy, IsTheOptimizersUntilSomebodyElseWrites) {
  const torch::NoGradGuard no_grad;
  const Tensor parameter = torch::zeros({2, 2});
  EXPECT_EQ(first_of(parameter), 0);
  const auto version = parameter._version();
  update(parameter, 7);
  EXPECT_GT(parameter._version(), version);
  EXPECT_EQ(first_of(parameter), 8);
  parameter.fill_(3);  // a hand: the copy is stale, and not the optimizer's to write
  EXPECT_FALSE(internal::copy_written_with(parameter).defined());
  internal::copy_is_written(parameter, Tensor(), kWriter);  // of an update that was called off
  EXPECT_EQ(first_of(parameter), 3);
  update(parameter, 10);
  EXPECT_EQ(first_of(parameter), 11);
}

TEST(ComputeCopy, IsMadeAnewInEveryUseUnderAnotherOptimizer) {
  const Tensor parameter = torch::ones({2, 2});
  EXPECT_EQ(first_of(parameter), 1);
  parameter.data().fill_(2);  // as torch::optim writes
  EXPECT_EQ(first_of(parameter), 2);
  update(parameter, 6);
  parameter.data().fill_(4);  // between two steps of AdamW it must be said
  forget_compute_copies();
  EXPECT_EQ(first_of(parameter), 4);
}

// Several forward passes before a backward: what the first one saved stays as it was.
TEST(ComputeCopy, LeavesTheOneBeforeAloneUntilAnOptimizerWritesIt) {
  const torch::NoGradGuard no_grad;
  const Tensor parameter = torch::ones({2, 2});
  const Tensor first = compute_copy(parameter, at::kBFloat16);
  const auto version = first._version();
  parameter.fill_(2);
  const Tensor second = compute_copy(parameter, at::kBFloat16);
  EXPECT_EQ(first._version(), version);
  EXPECT_EQ(first[0][0].item<double>(), 1);
  EXPECT_EQ(second[0][0].item<double>(), 2);
  // The optimizer's write is told to whoever saved the copy, and the copy stays where it is.
  update(parameter, 3);
  EXPECT_GT(second._version(), 0u);
  EXPECT_EQ(compute_copy(parameter, at::kBFloat16).data_ptr(), second.data_ptr());
  parameter.fill_(9);
  EXPECT_EQ(compute_copy(parameter, at::kBFloat16).data_ptr(), second.data_ptr());
}

TEST(ComputeCopy, IsNobodysWhenItsOptimizerIsGone) {
  const Tensor parameter = torch::ones({2, 2});
  first_of(parameter);
  {
    const std::shared_ptr<void> writer = std::make_shared<char>();
    update(parameter, 5, writer);
    EXPECT_EQ(first_of(parameter), 6);
  }
  parameter.data().fill_(7);  // by torch::optim from now on
  EXPECT_EQ(first_of(parameter), 7);
}

TEST(ComputeCopy, FollowsReplays) {
  const torch::NoGradGuard no_grad;
  const Tensor followed = torch::ones({2, 2}), other = torch::ones({2, 2});
  first_of(followed);
  const Tensor copy = compute_copy(other, at::kBFloat16);
  update(followed, 6);
  internal::note_replay();
  EXPECT_EQ(first_of(followed), 7);  // the graph's optimizer wrote it
  followed.fill_(5);
  internal::refresh_copies_before_replay();
  EXPECT_EQ(internal::copy_written_with(followed).flatten()[0].item<double>(), 5);
  other.data().fill_(9);
  EXPECT_EQ(first_of(other), 9);
}

TEST(ComputeCopy, KnowsInferenceMode) {
  const Tensor parameter = torch::ones({2, 2});
  Tensor inferred;
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(first_of(parameter), 1);
    inferred = torch::ones({2, 2});
    EXPECT_EQ(first_of(inferred), 1);
    inferred.fill_(2);  // counted by nobody
    EXPECT_EQ(first_of(inferred), 2);
    update(inferred, 3);
    EXPECT_EQ(first_of(inferred), 3);
  }
  EXPECT_EQ(first_of(inferred), 3);
  update(parameter, 4);  // the copy that was made above, in its place
  EXPECT_EQ(first_of(parameter), 5);
}

TEST(ComputeCopy, DoesNotOutliveItsParameter) {
  for (int i = 0; i < 100; ++i) {  // addresses come again
    const Tensor parameter = torch::full({4, 4}, i);
    EXPECT_EQ(first_of(parameter.to(at::kFloat)), i);
  }
  EXPECT_FALSE(internal::copy_written_with(torch::ones({2})).defined());
}

TEST(ComputeCopy, LeavesItsMemoryThoughNoOtherIsMade) {
  const Tensor living = torch::ones({2, 2});
  first_of(living);
  update(living, 2);  // from here on its copy stays
  const auto goes_after = [](const std::function<void()>& call) {
    Tensor parameter = torch::ones({2, 2});
    const c10::weak_intrusive_ptr<c10::TensorImpl> copy(
        compute_copy(parameter, at::kBFloat16).getIntrusivePtr());
    call();
    const bool was_there = !copy.expired();
    parameter.reset();
    call();
    return was_there && copy.expired();
  };
  EXPECT_TRUE(goes_after([&] {
    for (int i = 0; i < 10; ++i) first_of(living);
  }));
  EXPECT_TRUE(goes_after(internal::refresh_copies_before_replay));
  EXPECT_TRUE(goes_after(forget_compute_copies));
}

TEST(ComputeCopy, NamesWhatIsWrong) {
  EXPECT_THROW(compute_copy(std::vector<Tensor>{}, at::kBFloat16), UserError);
  EXPECT_THROW(compute_copy({torch::ones({2, 3}), torch::ones({2, 4})}, at::kBFloat16), UserError);
  EXPECT_THROW(compute_copy(torch::scalar_tensor(1.0), at::kBFloat16), UserError);
  const Tensor near = torch::ones({2, 3}), far = torch::ones({2, 3}, at::kMeta);
  testing::expect_sentence(
      [&] {
        compute_copy({near, far}, at::kBFloat16);
      },
      {"got [2, 3] on cpu and [2, 3] on meta"});
}

}  // namespace
}  // namespace flashstep
