#include "flashstep/measure/memory_snapshot.h"

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/pickle.h"
#include "flashstep/testing/sanitizers.h"

namespace flashstep::measure {
namespace {

// `count` allocations, each freed three later, of which every tenth stays.
MemoryTrace long_trace(uint32_t count) {
  MemoryTrace trace;
  trace.frames = {{"flashstep::f()", "/x/f.cc", 7}, {"main", "/x/main.cc", 1}};
  trace.sites.push_back({"step/forward", "aten::mm", {0, 1}});
  trace.sites.push_back({"step/backward", "", {1}});
  const auto add = [&](uint32_t allocation, bool is_free) {
    const auto event = static_cast<uint32_t>(trace.events.size());
    Allocation& a = trace.allocations[allocation];
    (is_free ? a.end : a.begin) = event;
    trace.events.push_back({event * 1e-6, allocation, is_free});
  };
  for (uint32_t i = 0; i < count; ++i) {
    Allocation a;
    a.address = 0x7f0000000000 + i * 4096ull;
    a.bytes = 1 + i % 5000;
    a.site = 1 + i % 2;
    a.kind = i % 3 == 0 ? MemoryKind::kActivations : MemoryKind::kTemporaries;
    trace.allocations.push_back(a);
    add(i, false);
    if (i >= 3 && i % 10 != 0) add(i - 3, true);
  }
  trace.ranges = {{"step/forward", {0, count / 2}, 0, trace.events[count / 2].seconds}};
  return trace;
}

TEST(MemorySnapshot, ReadsWhatWasWritten) {
  const MemoryTrace trace = long_trace(500);
  const MemoryTrace read = read_snapshot(to_snapshot(trace), "test");
  ASSERT_EQ(read.events.size(), trace.events.size());
  ASSERT_EQ(read.allocations.size(), trace.allocations.size());
  for (size_t i = 0; i < trace.allocations.size(); ++i) {
    const Allocation &a = trace.allocations[i], &b = read.allocations[i];
    EXPECT_EQ(a.address, b.address);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.begin, b.begin);
    EXPECT_EQ(a.end, b.end);
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(trace.sites[a.site].ranges, read.sites[b.site].ranges);
    EXPECT_EQ(maker_of(trace, trace.sites[a.site]), maker_of(read, read.sites[b.site]));
    EXPECT_EQ(source_of(trace, trace.sites[a.site]), source_of(read, read.sites[b.site]));
  }
  EXPECT_EQ(peak(trace, trace.all()).bytes, peak(read, read.all()).bytes);
  const MemoryRange* range = find_range(read, "step/forward");
  ASSERT_NE(range, nullptr);
  EXPECT_EQ(range->events.end, 250u);
}

void write_event(PickleWriter& p, const char* action, int64_t address, int64_t size, int64_t time) {
  p.begin_dict();
  p.text("action");
  p.text(action);
  p.text("addr");
  p.integer(address);
  p.text("size");
  p.integer(size);
  p.text("time_us");
  p.integer(time);
  p.end();
}

// What LibTorch writes for CUDA: no categories, rounded blocks, allocations from before the
// history.
TEST(MemorySnapshot, ReadsAHistoryThatBeginsInTheMiddle) {
  PickleWriter p;
  const auto event = [&](const char* action, int64_t address, int64_t size, int64_t time) {
    write_event(p, action, address, size, time);
  };
  p.begin_dict();
  p.text("segments");
  p.begin_list();
  p.begin_dict();
  p.text("device");
  p.integer(1);
  p.text("address");
  p.integer(10'000);
  p.text("blocks");
  p.begin_list();
  for (const char* state : {"active_allocated", "inactive", "active_allocated"}) {
    p.begin_dict();
    p.text("size");
    p.integer(512);
    p.text("requested_size");
    p.integer(500);
    p.text("state");
    p.text(state);
    p.end();
  }
  p.end();
  p.end();
  p.end();
  p.text("device_traces");
  p.begin_list();
  p.begin_list();
  p.end();
  p.begin_list();
  event("alloc", 10'000, 500, 100);  // the first block: lives at the end
  event("free_requested", 10'512, 300, 110);
  event("free_completed", 10'512, 300, 120);  // was there before
  event("segment_alloc", 1, 1, 130);
  p.end();
  p.end();
  p.end();
  const MemoryTrace trace = read_snapshot(p.take(), "test");
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.events[1].seconds, 20e-6);
  EXPECT_EQ(total(before(trace, trace.all()).bytes), 300 + 500) << "the freed one, the third block";
  EXPECT_EQ(total(peak(trace, trace.all()).bytes), 300 + 500 + 500);
}

TEST(MemorySnapshot, OtherPicklesAreRefused) {
  PickleWriter list;
  list.begin_list();
  list.end();
  EXPECT_THROW(read_snapshot(list.take(), "test"), UserError);
  EXPECT_THROW(read_snapshot("", "test"), UserError);
  const std::string whole = to_snapshot(long_trace(20));
  EXPECT_THROW(read_snapshot(whole.substr(0, whole.size() / 2), "test"), UserError);
}

// A snapshot of one device with allocations of these sizes at these times.
std::string snapshot_of(const std::vector<std::pair<int64_t, int64_t>>& sizes_and_times) {
  PickleWriter p;
  p.begin_dict();
  p.text("segments");
  p.begin_list();
  p.end();
  p.text("device_traces");
  p.begin_list();
  p.begin_list();
  int64_t address = 0;
  for (const auto& [size, time] : sizes_and_times) write_event(p, "alloc", ++address, size, time);
  p.end();
  p.end();
  p.end();
  return p.take();
}

TEST(MemorySnapshot, SizesThatNoMemoryHasAreRefused) {
  constexpr int64_t kLarge = int64_t{1} << 62;
  EXPECT_EQ(read_snapshot(snapshot_of({{kLarge, 1}, {0, 2}}), "test").events.size(), 2u);
  EXPECT_THROW(read_snapshot(snapshot_of({{kLarge, 1}, {1, 2}}), "test"), UserError);
  EXPECT_THROW(read_snapshot(snapshot_of({{-1, 1}}), "test"), UserError);
}

TEST(MemorySnapshot, TimeNeverRunsBack) {
  for (const int64_t earlier : {int64_t{90}, INT64_MIN}) {
    const MemoryTrace trace =
        read_snapshot(snapshot_of({{8, 100}, {8, 110}, {8, earlier}, {8, 120}}), "test");
    ASSERT_EQ(trace.events.size(), 4u);
    for (size_t i = 1; i < 4; ++i) {
      EXPECT_GE(trace.events[i].seconds, trace.events[i - 1].seconds) << earlier;
    }
    EXPECT_EQ(total(timeline(trace, trace.all(), 10).back().bytes), 32);
  }
}

TEST(MemorySnapshot, AnEmptyTraceIsASnapshotToo) {
  const MemoryTrace read = read_snapshot(to_snapshot(MemoryTrace()), "test");
  EXPECT_TRUE(read.events.empty());
  EXPECT_EQ(total(peak(read, read.all()).bytes), 0);
}

TEST(MemorySnapshot, AHundredMegabytesFitIntoOneGigabyte) {
  if (flashstep::testing::has_a_sanitizers_heap()) GTEST_SKIP() << "a sanitizer keeps freed memory";
  std::string bytes;
  size_t events = 0;
  {
    const MemoryTrace trace = long_trace(700'000);
    events = trace.events.size();
    bytes = to_snapshot(trace);
  }
  ASSERT_GT(bytes.size(), 100'000'000u);
  if (!reset_peak_resident()) GTEST_SKIP() << "this kernel does not reset the peak";
  const uint64_t before = resident_bytes();
  const MemoryTrace read = read_snapshot(bytes, "test");
  EXPECT_EQ(read.events.size(), events);
  EXPECT_LT(peak_resident_bytes() - before, 1'000'000'000u);
}

}  // namespace
}  // namespace flashstep::measure
