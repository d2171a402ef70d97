#include "flashstep/bench/step_work.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep::tools {
namespace {

class Recorded {
 public:
  Recorded& add(EventKind kind, const std::string& name, int64_t begin_us, int64_t end_us,
                uint32_t lane) {
    TraceEvent event;
    event.kind = kind;
    event.name = trace_.names.index(name);
    event.begin_ns = 1000 * begin_us;
    event.end_ns = 1000 * end_us;
    event.lane = lane;
    trace_.events.push_back(event);
    return *this;
  }
  const TraceEvents& trace() const { return trace_; }

 private:
  TraceEvents trace_;
};

Record work_of(const Recorded& recorded) {
  Record record{.implementation = "ours"};
  put_step_work(recorded.trace(), record);
  return record;
}

// A fact in microseconds.
double us(const Record& work, const std::string& fact) { return 1e6 * work.number(fact); }

TEST(StepWork, OfAGpuByKernel) {
  Recorded recorded;
  recorded.add(EventKind::kOperator, "aten::mm", 0, 500, 1)
      .add(EventKind::kKernel, "ampere_bf16_gemm", 100, 160, 7)
      .add(EventKind::kKernel, "ncclDevKernel_AllGather", 140, 180, 9)
      .add(EventKind::kKernel, "void flash_fwd_kernel<64>()", 170, 200, 7)
      .add(EventKind::kCopy, "Memcpy PtoP (Device -> Device)", 230, 250, 9)
      .add(EventKind::kCopy, "Memset (Device)", 290, 300, 7);
  const Record work = work_of(recorded);
  EXPECT_NEAR(us(work, "class matmul"), 60, 1e-6);
  EXPECT_NEAR(us(work, "class attention"), 30, 1e-6);
  EXPECT_NEAR(us(work, "class copy"), 10, 1e-6);
  EXPECT_NEAR(us(work, "class communication"), 60, 1e-6);
  EXPECT_NEAR(us(work, "exposed"), 10 + 20, 1e-6);
  EXPECT_NEAR(us(work, "idle"), 30 + 40, 1e-6);
  EXPECT_NEAR(us(work, "traced"), 200, 1e-6);
}

TEST(StepWork, OfACpuByOperatorWithoutThoseItCalled) {
  Recorded recorded;
  recorded.add(EventKind::kOperator, "aten::mm", 20, 50, 1)
      .add(EventKind::kOperator, "aten::linear", 10, 70, 1)
      .add(EventKind::kOperator, "aten::mul", 50, 60, 1)
      .add(EventKind::kOperator, "aten::mm", 30, 90, 2)
      .add(EventKind::kOperator, "aten::softmax", 90, 110, 2)
      .add(EventKind::kRange, "a step", 0, 1000, 1);
  const Record work = work_of(recorded);
  EXPECT_NEAR(us(work, "class element-wise"), 10, 1e-6);
  EXPECT_NEAR(us(work, "class softmax"), 20, 1e-6);
  double sum = 0;
  for (const WorkClass work_class : all_work_classes()) {
    const std::string fact = std::string("class ") + class_name(work_class);
    if (work.facts.contains(fact)) sum += us(work, fact);
  }
  EXPECT_NEAR(sum, 60 + 60 + 20, 1e-6);
  EXPECT_GE(us(work, "class matmul"), 30 + 60 - 1e-6);
  EXPECT_NEAR(us(work, "traced"), 100, 1e-6);
  EXPECT_FALSE(work.facts.contains("exposed"));
}

TEST(StepWork, ColumnsAreTheClassesThatThereAre) {
  Recorded recorded;
  recorded.add(EventKind::kKernel, "ampere_bf16_gemm", 0, 2000, 7);
  const Schema schema = step_work_schema(Records({work_of(recorded)}));
  std::vector<std::string> names;
  for (const SchemaColumn& column : schema) names.push_back(column.column.name);
  EXPECT_EQ(names, (std::vector<std::string>{"traced step", "matmul", "exposed", "idle"}));
  EXPECT_EQ(work_of({}).number("traced"), 0);
}

TEST(StepWork, MemoryStaysUntilItChanges) {
  measure::MemoryTrace trace;
  trace.allocations = {{.bytes = 1 << 20}, {.bytes = 2 << 20, .begin = 0, .end = 1}};
  trace.events = {{1.5, 1, false}, {3, 1, true}};
  trace.ranges = {{"step", {0, 2}, 1, 4}};
  Record record{.what = "a case", .implementation = "ours"};
  put_step_memory(trace, record);
  const std::vector<double>&at = record.series("memory at"), &bytes = record.series("memory");
  ASSERT_EQ(at.size(), bytes.size());
  ASSERT_GE(at.size(), 3u);
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
  EXPECT_EQ(bytes.front(), 1 << 20);
  EXPECT_EQ(*std::max_element(bytes.begin(), bytes.end()), 3 << 20);
  EXPECT_EQ(bytes.back(), 1 << 20);
  for (size_t i = 1; i < at.size(); ++i)
    EXPECT_TRUE(at[i] == at[i - 1] || bytes[i] == bytes[i - 1]);

  const std::vector<NamedPicture> pictures =
      step_memory_pictures(Records({record, Record{.what = "another"}}));
  ASSERT_EQ(pictures.size(), 1u);
  const auto& plot = std::get<measure::Plot>(pictures[0].picture);
  EXPECT_EQ(plot.y.label, "MiB of tensors");
  EXPECT_EQ(*std::max_element(plot.series[0].y.begin(), plot.series[0].y.end()), 3);
}

}  // namespace
}  // namespace flashstep::tools
