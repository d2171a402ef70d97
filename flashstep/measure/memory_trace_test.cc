#include "flashstep/measure/memory_trace.h"

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

// A trace put together event by event, one second apart.
class Builder {
 public:
  uint32_t alloc(int64_t bytes, const std::string& ranges = "", const std::string& operators = "") {
    MemorySite site;
    site.ranges = ranges;
    site.operators = operators;
    trace.sites.push_back(site);
    Allocation allocation;
    allocation.address = 4096 * (trace.allocations.size() + 1);
    allocation.bytes = bytes;
    allocation.site = static_cast<uint32_t>(trace.sites.size() - 1);
    allocation.begin = now();
    const auto index = static_cast<uint32_t>(trace.allocations.size());
    trace.allocations.push_back(allocation);
    trace.events.push_back({static_cast<double>(now()), index, false});
    return index;
  }
  void free(uint32_t index) {
    trace.allocations[index].end = now();
    trace.events.push_back({static_cast<double>(now()), index, true});
  }
  void range(const std::string& path, uint32_t begin) {
    trace.ranges.push_back({path, {begin, now()}, double(begin), double(now())});
  }
  uint32_t now() const { return static_cast<uint32_t>(trace.events.size()); }

  MemoryTrace trace;
};

int64_t bytes_of(const MemoryMoment& moment, MemoryKind kind) {
  return moment.bytes[static_cast<size_t>(kind)];
}

// Weights; a forward pass with something kept and something not; a backward pass.
Builder a_step() {
  Builder b;
  const uint32_t weights = b.alloc(100);
  b.trace.allocations[weights].kind = MemoryKind::kParameters;
  b.trace.allocations[weights].labelled = true;
  const uint32_t forward = b.now();
  const uint32_t kept = b.alloc(40, "step/forward"), scratch = b.alloc(7, "step/forward");
  b.free(scratch);
  b.range("step/forward", forward);
  const uint32_t backward = b.now();
  const uint32_t gradient = b.alloc(100, "step/backward");
  b.trace.allocations[gradient].kind = MemoryKind::kGradients;
  b.trace.allocations[gradient].labelled = true;
  const uint32_t bucket = b.alloc(30, "step/backward", "c10d::allreduce_");
  b.free(kept);
  b.free(bucket);
  b.range("step/backward", backward);
  b.alloc(5);  // outside of passes
  conclude_kinds(b.trace);
  return b;
}

TEST(MemoryTrace, ConcludesKindsFromPasses) {
  const MemoryTrace trace = a_step().trace;
  const std::vector<MemoryKind> expected = {MemoryKind::kParameters,    MemoryKind::kActivations,
                                            MemoryKind::kTemporaries,   MemoryKind::kGradients,
                                            MemoryKind::kCommunication, MemoryKind::kOther};
  ASSERT_EQ(trace.allocations.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(trace.allocations[i].kind, expected[i]) << i << " " << name_of(expected[i]);
  }
}

TEST(MemoryTrace, WhatOutlivesItsStepIsNoActivation) {
  Builder b;
  const uint32_t begin = b.now();
  const uint32_t workspace = b.alloc(32, "step/forward"), kept = b.alloc(40, "step/forward");
  b.range("step/forward", begin);
  const uint32_t backward = b.now();
  const uint32_t scratch = b.alloc(7, "step/backward"), second = b.alloc(32, "step/backward");
  b.free(kept);
  b.free(scratch);
  b.range("step/backward", backward);
  b.range("step", begin);
  b.free(second);
  conclude_kinds(b.trace);
  EXPECT_EQ(b.trace.allocations[workspace].kind, MemoryKind::kOther);
  EXPECT_EQ(b.trace.allocations[second].kind, MemoryKind::kOther);
  EXPECT_EQ(b.trace.allocations[kept].kind, MemoryKind::kActivations);
  EXPECT_EQ(b.trace.allocations[scratch].kind, MemoryKind::kTemporaries);
}

TEST(MemoryTrace, PeakIsTheGreatestSumAndWhatItHolds) {
  const MemoryTrace trace = a_step().trace;
  const MemoryMoment moment = peak(trace, trace.all());
  EXPECT_EQ(total(moment.bytes), 270);
  EXPECT_EQ(moment.event, 5u);
  EXPECT_EQ(bytes_of(moment, MemoryKind::kParameters), 100);
  EXPECT_EQ(bytes_of(moment, MemoryKind::kActivations), 40);
  EXPECT_EQ(bytes_of(moment, MemoryKind::kCommunication), 30);
  EXPECT_EQ(bytes_of(moment, MemoryKind::kTemporaries), 0);
  EXPECT_EQ(total(peak(trace, trace.ranges[0].events).bytes), 147) << "of the forward pass alone";
  EXPECT_EQ(total(peak(trace, {6, 8}).bytes), 270) << "what was there before the window counts";
  EXPECT_EQ(total(before(trace, {6, 8}).bytes), 270);
  EXPECT_EQ(total(before(trace, trace.all()).bytes), 0);
}

TEST(MemoryTrace, AllocationsFromBeforeTheTraceCountFromItsBeginning) {
  Builder b;
  Allocation old;
  old.bytes = 64;
  b.trace.allocations.push_back(old);
  b.alloc(1);
  b.free(0);
  EXPECT_EQ(total(before(b.trace, b.trace.all()).bytes), 64);
  EXPECT_EQ(total(peak(b.trace, b.trace.all()).bytes), 65);
}

TEST(MemoryTrace, TimelineKeepsEveryPeakInFewColumns) {
  Builder b;
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t spike = b.alloc(i == 4321 ? 1'000'000 : 10);
    b.free(spike);
  }
  for (const int columns : {1, 7, 100}) {
    const auto moments = timeline(b.trace, b.trace.all(), columns);
    EXPECT_LE(moments.size(), 2u * static_cast<size_t>(columns) + 1);
    int64_t greatest = 0;
    double last = 0;
    for (const MemoryMoment& moment : moments) {
      greatest = std::max(greatest, total(moment.bytes));
      EXPECT_GE(moment.seconds, last);
      last = moment.seconds;
    }
    EXPECT_EQ(greatest, 1'000'000) << columns;
    EXPECT_EQ(total(moments.back().bytes), 0);
  }
  EXPECT_EQ(timeline(b.trace, {5, 5}, 10).size(), 1u) << "an empty window is what was before it";
}

TEST(MemoryTrace, WhoMadeIt) {
  MemoryTrace trace;
  trace.frames = {{"c10::Allocator::allocate(unsigned long)", "libc10.so", 0},
                  {"flashstep::measure::hook(int)", "libflashstep.so", 0},
                  {"flashstep::rms_norm(at::Tensor const&, double)", "/x/rms_norm.cc", 12},
                  {"flashstep::outer()", "libflashstep.so", 0}};
  MemorySite site;
  EXPECT_EQ(maker_of(trace, site), "");
  site.operators = "aten::empty_like";
  EXPECT_EQ(maker_of(trace, site), "aten::empty_like") << "nothing better is known";
  site.frames = {0, 1, 2, 3};
  EXPECT_EQ(source_of(trace, site), "flashstep::rms_norm (rms_norm.cc:12)");
  EXPECT_EQ(maker_of(trace, site), "flashstep::rms_norm (rms_norm.cc:12)");
  trace.frames.push_back({"flashstep::tools::ModelRun::backward(at::Tensor const&)", "x.so", 0});
  site.frames = {4};
  EXPECT_EQ(source_of(trace, site), "") << "a caller of backward made nothing";
  trace.frames.push_back({"forward", "/x/torch/nn/linear.py", 125});
  trace.frames.push_back({"step", "/home/me/train.py", 30});
  site.frames = {0, 5, 6};
  EXPECT_EQ(source_of(trace, site), "step (train.py:30)");
  site.frames = {0, 3};
  EXPECT_EQ(source_of(trace, site), "flashstep::outer");
  site.operators = "aten::linear/aten::mm/aten::resize_";
  EXPECT_EQ(maker_of(trace, site), "aten::linear > aten::mm");
  site.operators = "autograd::engine::evaluate_function: MmBackward0/MmBackward0/aten::mm";
  EXPECT_EQ(maker_of(trace, site), "MmBackward0 > aten::mm");
  site.operators = "aten::add";
  EXPECT_EQ(maker_of(trace, site), "aten::add");
}

TEST(MemoryTrace, RangesLieInPaths) {
  EXPECT_TRUE(is_within("step/forward/layers.1", "step/forward"));
  EXPECT_TRUE(is_within("step/forward", "step/forward"));
  EXPECT_FALSE(is_within("step/forward/layers.10", "step/forward/layers.1"));
  EXPECT_FALSE(is_within("step", "step/forward"));
  const MemoryTrace trace = a_step().trace;
  ASSERT_NE(find_range(trace, "step/backward"), nullptr);
  EXPECT_EQ(find_range(trace, "step/backward")->events.begin, 4u);
  EXPECT_EQ(find_range(trace, "backward"), nullptr);
}

}  // namespace
}  // namespace flashstep::measure
