// Windows on two GPUs: gathered into, given back in any order, and left over when the group is
// gone.
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "flashstep/comm/window.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::comm {
namespace {

using at::Tensor;
using testing::same_bits;

GroupOptions over_nccl() {
  GroupOptions options;
  options.nccl = true;
  return options;
}

// The whole of a tensor whose half r rank r brings, by an all-gather in place.
void expect_gathered(const Group& group, const Tensor& window, int64_t value) {
  const int64_t half = window.numel() / 2;
  Tensor own = window.slice(0, group.rank() * half, (group.rank() + 1) * half), whole = window;
  own.fill_(value + group.rank());
  group.wait(group.process_group()._allgather_base(whole, own), "gather");
  Tensor expected = at::full_like(window, value);
  expected.slice(0, half) += 1;
  EXPECT_TRUE(same_bits(window, expected)) << window.dtype() << " of " << window.numel();
}

TEST(GpuWindow, IsGatheredInto) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    std::vector<Tensor> windows;  // outlive the group
    const Group group(environment, over_nccl());
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const int64_t numel : {int64_t{64}, int64_t{6} << 20, (int64_t{40} << 20) + 128})
        windows.push_back(window_zeros(numel, at::TensorOptions(device).dtype(dtype), group));
    }
    for (int64_t round = 0; round < 3; ++round) {
      for (size_t i = 0; i < windows.size(); ++i) {
        if (windows[i].defined()) expect_gathered(group, windows[i], 10 * round + i);
      }
      // Given back in another order on each rank; the next ones may lie in the same place.
      const bool is_first = group.is_first();
      windows[is_first ? 2 : 5] = {};
      windows[is_first ? 5 : 2] = {};
      const auto options = at::TensorOptions(device).dtype(at::kFloat);
      windows.push_back(window_zeros(int64_t{20} << 20, options, group));
    }
    group.barrier();
  });
}

TEST(GpuWindow, IsFilledWithoutKernels) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    namespace profiler = torch::autograd::profiler;
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment, over_nccl());
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    const Tensor window = window_zeros(int64_t{64} << 20, options, group);
    expect_gathered(group, window, 1);
    profiler::prepareProfiler({profiler::ProfilerState::KINETO}, {profiler::ActivityType::CUDA});
    profiler::enableProfiler({profiler::ProfilerState::KINETO}, {profiler::ActivityType::CUDA});
    expect_gathered(group, window, 2);
    const auto result = profiler::disableProfiler();
    int copies = 0;
    for (const auto& event : result->events()) {
      const std::string name = event.name();
      copies += name.find("Memcpy PtoP") != std::string::npos;
      EXPECT_EQ(name.find("ncclDevKernel_AllGather"), std::string::npos) << name;
    }
    EXPECT_GE(copies, 1);
    group.barrier();
  });
}

}  // namespace
}  // namespace flashstep::comm
