#include "flashstep/train/tensor_memory.h"

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/measure/memory.h"
#include "flashstep/testing/sanitizers.h"

namespace flashstep {
namespace {

TEST(TensorMemory, IsAlignedAndWhole) {
  keep_memory_of_tensors();
  for (const int64_t bytes : {0, 1, 63, 64, 65, 100'003}) {
    const at::Tensor tensor = at::zeros({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << bytes;
    EXPECT_EQ(tensor.sum().item<int64_t>(), 0);
  }
  // Sanitizers end a process that asks for as much.
  if (testing::has_a_sanitizers_heap()) return;
  EXPECT_THROW(at::empty({int64_t{1} << 60}, at::kByte), c10::OutOfMemoryError);
}

// As in a training step: what a tensor leaves is room for the next one of its size, whatever small
// objects were made meanwhile and stay.
TEST(TensorMemory, IsUsedAgainBesideSmallObjects) {
  if (testing::has_a_sanitizers_heap()) GTEST_SKIP() << "sanitizers bring a heap of their own";
  keep_memory_of_tensors();
  constexpr int kTensors = 64, kRounds = 10;
  constexpr int64_t kBytes = 1 << 20;
  std::vector<std::unique_ptr<char[]>> small;
  const auto step = [&] {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(at::ones({kBytes}, at::kByte));
      for (const size_t bytes : {24, 40, 56, 72}) small.push_back(std::make_unique<char[]>(bytes));
    }
  };
  step();
  const uint64_t before = measure::resident_bytes();
  for (int round = 0; round < kRounds; ++round) step();
  const auto grown = static_cast<int64_t>(measure::resident_bytes() - before);
  EXPECT_LT(grown, kTensors * kBytes / 2) << "of " << kTensors * kBytes << " in a round";
}

}  // namespace
}  // namespace flashstep
