#include "flashstep/measure/memory_observer.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "flashstep/error.h"
#include "flashstep/profiling.h"

namespace flashstep::measure {
namespace {

constexpr int64_t kMany = 12'345;  // elements: no other allocation has that many

std::vector<const Allocation*> of_bytes(const MemoryTrace& trace, int64_t bytes) {
  std::vector<const Allocation*> found;
  for (const Allocation& a : trace.allocations) {
    if (a.bytes == bytes) found.push_back(&a);
  }
  return found;
}

const MemorySite& site_of(const MemoryTrace& trace, const Allocation& allocation) {
  return trace.sites[allocation.site];
}

TEST(MemoryObserver, RecordsAllocationsWithShapeOperatorAndRange) {
  MemoryObserver observer(c10::DeviceType::CPU);
  at::Tensor kept;
  {
    const ScopedRange outer("outer"), inner("inner");
    const at::Tensor gone = at::zeros({kMany});
    kept = (gone + 1).view({5, kMany / 5});
  }
  const MemoryTrace trace = observer.take();
  const auto found = of_bytes(trace, 4 * kMany);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(site_of(trace, *found[0]).ranges, "outer/inner");
  EXPECT_EQ(maker_of(trace, site_of(trace, *found[0])), "aten::zeros");
  EXPECT_EQ(maker_of(trace, site_of(trace, *found[1])), "aten::add");
  EXPECT_EQ(trace.shapes[found[1]->shape], "float32 (12345)") << "before it was viewed otherwise";
  EXPECT_NE(found[0]->end, kNoEvent);
  EXPECT_EQ(found[1]->end, kNoEvent);
  ASSERT_EQ(trace.ranges.size(), 2u);
  EXPECT_EQ(trace.ranges[1].path, "outer/inner");
  EXPECT_LE(trace.ranges[1].events.begin, found[0]->begin);
  EXPECT_GE(trace.ranges[1].events.end, found[1]->begin);
  EXPECT_LE(trace.ranges[1].begin, trace.ranges[1].end);
}

TEST(MemoryObserver, SumsAreWhatTensorsHold) {
  MemoryObserver observer(c10::DeviceType::CPU);
  std::vector<at::Tensor> tensors;
  int64_t expected = 0;
  for (const int64_t elements : {1, 7, 4096, 100'000}) {
    tensors.push_back(at::empty({elements}, at::kDouble));
    expected += 8 * elements;
  }
  observer.label(MemoryKind::kParameters, {tensors[0], tensors[3], at::Tensor()});
  observer.label(MemoryKind::kGradients, tensors);  // what has a label keeps it
  const MemoryTrace trace = observer.take();
  const KindBytes bytes = peak(trace, trace.all()).bytes;
  EXPECT_EQ(total(bytes), expected);
  EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::kParameters)], 8 * 100'001);
  EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::kGradients)], 8 * 4103);
}

TEST(MemoryObserver, BackwardStandsInTheRangeOfItsForward) {
  torch::nn::Linear linear(64, 64);
  const at::Tensor x = at::ones({kMany, 64});
  MemoryObserver observer(c10::DeviceType::CPU);
  at::Tensor loss;
  {
    const ScopedRange forward("forward");
    at::Tensor y;
    {
      const ScopedRange block("layers.0");
      y = torch::relu(linear->forward(x));
    }
    const ScopedRange head("head");
    loss = y.square().sum();
  }
  {
    const ScopedRange backward("backward");
    loss.backward();
  }
  const MemoryTrace trace = observer.take();
  std::vector<std::string> ranges;
  for (const Allocation* a : of_bytes(trace, 4 * 64 * kMany)) {
    ranges.push_back(site_of(trace, *a).ranges);
  }
  EXPECT_EQ(std::count(ranges.begin(), ranges.end(), "backward/layers.0"), 1) << "of relu";
  EXPECT_GE(std::count(ranges.begin(), ranges.end(), "backward/head"), 1) << "of the square";
  // What backward reads was kept; kinds need no label.
  for (const Allocation* a : of_bytes(trace, 4 * 64 * kMany)) {
    if (site_of(trace, *a).ranges.starts_with("backward")) {
      EXPECT_EQ(a->kind, MemoryKind::kTemporaries);
    }
  }
}

TEST(MemoryObserver, HearsOtherThreads) {
  MemoryObserver observer(c10::DeviceType::CPU);
  const ScopedRange range("main");
  at::Tensor made;
  std::thread([&] { made = at::empty({kMany}, at::kByte); }).join();
  std::thread([&] { made = at::Tensor(); }).join();
  const MemoryTrace trace = observer.take();
  const auto found = of_bytes(trace, kMany);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0]->end, kNoEvent) << "freed on a third thread";
  EXPECT_EQ(site_of(trace, *found[0]).ranges, "main") << "where the trace's own thread was";
}

TEST(MemoryObserver, TensorsOutliveItAndAnotherOneFollows) {
  at::Tensor before = at::ones({kMany}), during;
  {
    MemoryObserver observer(c10::DeviceType::CPU);
    EXPECT_THROW(MemoryObserver(c10::DeviceType::CPU), UserError);
    during = at::ones({kMany});
    during.resize_({2 * kMany});  // asks the allocator that the tensor came from
    before = at::Tensor();        // is not known
    EXPECT_EQ(of_bytes(observer.take(), 4 * kMany).size(), 1u);
  }
  during.resize_({3 * kMany});
  const at::Tensor after = during.sum();
  MemoryObserver second(c10::DeviceType::CPU);
  during = at::Tensor();  // from before
  const at::Tensor seen = at::ones({kMany});
  const MemoryTrace trace = second.take();
  EXPECT_EQ(of_bytes(trace, 4 * kMany).size(), 1u);
  EXPECT_EQ(trace.events.size(), 1u);
}

}  // namespace
}  // namespace flashstep::measure
