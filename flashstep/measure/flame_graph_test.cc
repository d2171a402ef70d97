#include "flashstep/measure/flame_graph.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/measure/png.h"

namespace flashstep::measure {
namespace {

FlameGraph small_graph() {
  FlameGraph graph;
  graph.title = "Where <a> step goes";
  graph.root.name = "step";
  FlameFrame& forward = child_frame(graph.root, "forward", kGrey);
  child_frame(forward, "mm", 0).value = 6;
  child_frame(forward, "softmax", 1).value = 2;
  FlameFrame& backward = child_frame(graph.root, "backward", kGrey);
  child_frame(backward, "mm", 0).value = 12;
  graph.keys = {{"matmul", 0}, {"softmax", 1}};
  add_up(graph.root);
  return graph;
}

TEST(FlameGraph, AddsUpAndFindsFrames) {
  FlameGraph graph = small_graph();
  EXPECT_EQ(graph.root.value, 20);
  EXPECT_EQ(graph.root.children[0].value, 8);
  EXPECT_EQ(&child_frame(graph.root, "backward", 3), &graph.root.children[1]);
  EXPECT_EQ(graph.root.children.size(), 2u);
}

TEST(FlameGraph, DrawsWidthsInProportion) {
  FlameGraph graph = small_graph();
  graph.width = 1032;  // 1,000 pixels between the margins
  const std::string svg = to_svg(graph);
  for (const char* text :
       {">step 100.0 %<", ">forward 40.0 %<", ">mm 60.0 %<", ">softmax 10.0 %<", "&lt;a&gt;",
        "<title>mm: 12.000 ms, 60.00 %</title>", "width=\"599.5\"", "width=\"99.5\""})
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  EXPECT_NO_THROW(render_png(svg, 1));
}

TEST(FlameGraph, DrawsWhateverTheDataHold) {
  FlameGraph graph = small_graph();
  graph.root.children[0].children[0].value = std::nan("");
  graph.root.children[0].children[1].value = std::numeric_limits<double>::infinity();
  graph.root.children[1].value = -1;
  std::string svg = to_svg(graph);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NO_THROW(render_png(svg, 1));
  EXPECT_NO_THROW(render_png(to_svg(FlameGraph()), 1));
}

}  // namespace
}  // namespace flashstep::measure
