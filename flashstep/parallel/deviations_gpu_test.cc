// A step that is not as the first was, over NCCL and by copies, where no host waits for another:
// the rank that it is true of says so and ends, the others hear of it.
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/data_parallel.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::Ranks;

constexpr int kOtherStep = 2;

struct Deviation {
  bool narrow = false;   // the gradient of `b` comes in bf16; else it does not come
  bool is_late = false;  // rank 0's GPU comes to the step when rank 1 has ended
};

// About a third of a second of an H200.
void keep_busy(const at::Device& device) {
  const Tensor a = at::zeros({4096, 4096}, device);
  for (int i = 0; i < 100; ++i) at::matmul(a, a);
}

// Rank 1 deviates in one step. Exit code 77: a rank went on with something else than the mean,
// which is NaN in that step.
void train(const Environment& environment, const ReducerOptions& options,
           const Deviation& deviation) {
  const bool narrow = deviation.narrow;
  const at::Device device = testing::take_gpu(environment);
  GroupOptions group_options = testing::over_nccl();
  group_options.on_stuck = end_process;
  const Group group(environment, group_options);
  const auto make = [&] { return at::ones({1000}, device).requires_grad_(); };
  const Tensor a = make(), b = make();
  GradientReducer reducer({a, b}, group, options, {"a", "b"});
  for (int step = 0;; ++step) {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    reducer.prepare_for_backward();
    if (step == kOtherStep && group.is_first() && deviation.is_late) keep_busy(device);
    Tensor loss = a.sum();
    const bool is_other = step == kOtherStep && !group.is_first();
    if (is_other && narrow) b.set_grad_dtype(at::kBFloat16);
    if (!is_other || narrow) loss = loss + 2 * b.sum();
    loss.backward();
    reducer.finish_gradient_synchronization();
    const auto wrong_a = group.guarded("training", [&] { return (a.grad() != 1).sum(); });
    const Tensor wrong_b = step == kOtherStep ? ~b.grad().isnan() : b.grad() != 2;
    const auto wrong =
        group.guarded("training", [&] { return (wrong_a + wrong_b.sum()).item<int64_t>(); });
    group.check("training");
    if (wrong != 0) std::_Exit(77);
  }
}

void expect_heard(const ReducerOptions& options, const Deviation& deviation) {
  testing::start_ranks(
      2, [&](const Environment& environment) { train(environment, options, deviation); },
      [&](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(1), 2) << ranks.all_output();
        const char* const sentence =
            deviation.narrow
                ? "expected gradients of Float for b, as was announced when they were wrapped, "
                  "but backward gave BFloat16 on rank 1"
                : "expected gradients as in the first step, but backward gave none for b on "
                  "rank 1";
        EXPECT_NE(ranks.output(1).find(sentence), std::string::npos) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(0), 1) << "77: neither the mean nor NaN\n" << ranks.all_output();
        EXPECT_NE(ranks.output(0).find("rank 1 ended with an error of its own"), std::string::npos)
            << ranks.all_output();
      });
}

// Over NCCL, by copies and in flat buckets.
const ReducerOptions kTransports[] = {{.peer_copies = false}, {}, {.flat_buckets = true}};

TEST(GpuDeviations, AMissingGradient) {
  FLASHSTEP_NEED_GPUS(2);
  for (const ReducerOptions& options : kTransports) {
    expect_heard(options, {});
    expect_heard(options, {.is_late = true});
  }
}

TEST(GpuDeviations, AGradientOfAnotherDtype) {
  FLASHSTEP_NEED_GPUS(2);
  for (const ReducerOptions& options : kTransports) {
    expect_heard(options, {.narrow = true});
    expect_heard(options, {.narrow = true, .is_late = true});
  }
}

}  // namespace
}  // namespace flashstep
