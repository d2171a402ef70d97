#include "flashstep/trace/trace_attribution.h"

#include <gtest/gtest.h>

#include "flashstep/trace/test_gpu_like_trace.h"
#include "flashstep/trace/trace_events.h"

namespace flashstep::tools {
namespace {

struct Seen {
  std::string pass, range, work_class;
  int64_t self_ns;
  bool operator==(const Seen&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Seen& s) {
  return out << s.pass << " | " << s.range << " | " << s.work_class << " | " << s.self_ns;
}

std::vector<Seen> items_of(const TraceEvents& trace, const std::string& name) {
  const Attribution attribution = attribute(trace);
  std::vector<Seen> seen;
  for (const WorkItem& item : attribution.items) {
    if (trace.names[trace.events[item.event].name].find(name) == std::string::npos) continue;
    seen.push_back({pass_name(item.pass), join(attribution.ranges.path(item.within.range), "/"),
                    class_name(item.work_class), item.self_ns});
  }
  return seen;
}

TEST(TraceAttribution, FindsPassAndRangeOfKernels) {
  const TraceEvents trace = parse_chrome_trace(gpu_like_trace(), "x");
  const std::vector<Seen> products = {{"forward", "layers.*/attention", "matmul", 10'000},
                                      {"backward", "layers.*/attention", "matmul", 20'000}};
  EXPECT_EQ(items_of(trace, "nvjet"), products) << "the one of the warm-up is left out";
  EXPECT_EQ(items_of(trace, "softmax_warp_backward"),
            (std::vector<Seen>{{"backward", "layers.*", "softmax", 5000}}));
  EXPECT_EQ(items_of(trace, "reduce_kernel"),
            (std::vector<Seen>{{"backward", "layers.*/norm", "reduction", 2000}}))
      << "by autograd's number at the beginning of the range: no operator of the forward pass "
         "tells";
  EXPECT_EQ(items_of(trace, "multi_tensor_apply"),
            (std::vector<Seen>{{"optimizer", "", "element-wise", 10'000}}))
      << "by its launch";
  EXPECT_EQ(items_of(trace, "Memcpy"), (std::vector<Seen>{{"optimizer", "", "copy", 10'000}}))
      << "by its time";
}

TEST(TraceAttribution, CopiesToAnotherGpuCommunicate) {
  TraceText text;
  text.device("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 0, 1, 0, 1);
  EXPECT_EQ(items_of(parse_chrome_trace(text.text(), "x"), "PtoP"),
            (std::vector<Seen>{{"outside", "", "communication", 1000}}));
}

TEST(TraceAttribution, CountsWorkOnce) {
  const Attribution attribution = attribute(parse_chrome_trace(gpu_like_trace(), "x"));
  double forward = 0, backward = 0;
  for (const OperatorItem& item : attribution.operators) {
    if (item.pass == Pass::kForward) forward += item.flops;
    if (item.pass == Pass::kBackward) backward += item.flops;
  }
  EXPECT_EQ(forward, 2 * 4 * 8 * 16);
  EXPECT_EQ(backward, 2 * 8 * 4 * 16);
}

// On a CPU: who is inside of whom takes the time.
TEST(TraceAttribution, GivesOperatorsTheTimeThatNoneBelowThemTakes) {
  TraceText text;
  text.host("user_annotation", "step", 1, 0, 100, 1)
      .host("user_annotation", "forward", 1, 10, 60, 2)
      .host("user_annotation", "norm", 1, 20, 10, 3)
      .host("cpu_op", "aten::empty", 1, 22, 1, 4)
      .host("cpu_op", "aten::linear", 1, 40, 20, 5)
      .host("cpu_op", "aten::mm", 1, 42, 15, 6)
      .host("cpu_op", "aten::copy_", 1, 44, 3, 7);
  const TraceEvents trace = parse_chrome_trace(text.text(), "x");
  EXPECT_EQ(items_of(trace, "aten::linear"), (std::vector<Seen>{{"forward", "", "matmul", 5000}}));
  EXPECT_EQ(items_of(trace, "aten::mm"), (std::vector<Seen>{{"forward", "", "matmul", 12'000}}));
  EXPECT_EQ(items_of(trace, "norm"), (std::vector<Seen>{{"forward", "norm", "reduction", 9000}}));
  EXPECT_EQ(items_of(trace, "forward"), (std::vector<Seen>{{"forward", "", "host", 30'000}}));
  int64_t all = 0;
  for (const WorkItem& item : attribute(trace).items) all += item.self_ns;
  EXPECT_EQ(all, 100'000) << "every moment belongs to one";
}

// A node that no operator announces (a function of one's own) belongs to the range around the one
// that ended last.
TEST(TraceAttribution, KnowsWhereRangesEnd) {
  TraceText text;
  text.host("user_annotation", "forward", 1, 0, 20, 1, ", \"Sequence number\": 3")
      .host("user_annotation", "feed-forward", 1, 1, 18, 2, ", \"Sequence number\": 3")
      .host("user_annotation", "swiglu", 1, 2, 4, 3, ", \"Sequence number\": 4")
      .host("user_annotation", "end of range", 1, 6, 0, 4, ", \"Sequence number\": 5")
      .host("user_annotation", "backward", 1, 30, 50, 5)
      .host("cpu_op", "autograd::engine::evaluate_function: CppNode<WidenedLinear>", 1, 31, 40, 6,
            ", \"Sequence number\": 5, \"Fwd thread id\": 1")
      .host("cpu_op", "aten::mm", 1, 32, 30, 7);
  const TraceEvents trace = parse_chrome_trace(text.text(), "x");
  EXPECT_EQ(items_of(trace, "aten::mm"),
            (std::vector<Seen>{{"backward", "feed-forward", "matmul", 30'000}}));
  EXPECT_TRUE(items_of(trace, "end of range").empty());
}

TEST(TraceAttribution, PutsRecomputedBlocksAtTheTop) {
  TraceText text;
  text.host("user_annotation", "forward", 1, 0, 20, 1)
      .host("user_annotation", "layers.0", 1, 1, 10, 2, ", \"Sequence number\": 3")
      .host("user_annotation", "backward", 1, 30, 50, 3)
      .host("cpu_op", "autograd::engine::evaluate_function: CppNode<Recompute>", 2, 31, 40, 4,
            ", \"Sequence number\": 3, \"Fwd thread id\": 1")
      .host("user_annotation", "layers.0", 2, 32, 20, 5, ", \"Sequence number\": 0")
      .host("user_annotation", "norm", 2, 33, 10, 6, ", \"Sequence number\": 0")
      .host("cpu_op", "aten::mean", 2, 34, 5, 7, ", \"Sequence number\": 0, \"Fwd thread id\": 0");
  const TraceEvents trace = parse_chrome_trace(text.text(), "x");
  EXPECT_EQ(items_of(trace, "aten::mean"),
            (std::vector<Seen>{{"backward", "layers.*/norm", "reduction", 5000}}));
}

TEST(TraceAttribution, KnowsBlocksByTheirNames) {
  EXPECT_EQ(block_of("layers.0"), 0);
  EXPECT_EQ(block_of("layers.47"), 47);
  for (const char* name : {"layers.", "layers.x", "layers.1x", "norm", "", "layers.99999999999999"})
    EXPECT_EQ(block_of(name), -1) << name;
}

}  // namespace
}  // namespace flashstep::tools
