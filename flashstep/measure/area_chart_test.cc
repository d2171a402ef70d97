#include "flashstep/measure/area_chart.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/measure/png.h"

namespace flashstep::measure {
namespace {

AreaChart small_area_chart() {
  AreaChart chart;
  chart.title = "Memory <of> a step";
  chart.x_label = "ms";
  chart.y_label = "MiB";
  chart.x = {0, 1, 2, 3};
  chart.layers = {{"parameters", 0, {2, 2, 2, 2}},
                  {"nothing", 2, {0, 0, 0, 0}},
                  {"activations", 1, {0, 1, 3, 0}}};
  chart.spans = {{0, 2, "forward"}, {2, 3, "backward"}};
  return chart;
}

TEST(AreaChart, DrawsLayersSpansAndLegend) {
  const std::string svg = to_svg(small_area_chart());
  for (const char* text :
       {">parameters<", ">activations<", ">forward<", ">backward<", "&lt;of&gt;", ">MiB<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  }
  EXPECT_EQ(svg.find(">nothing<"), std::string::npos) << "a layer that is 0 everywhere";
  EXPECT_NO_THROW(render_png(svg, 1));
}

TEST(AreaChart, NamesOfNarrowSpansReachBackWhereThereIsRoom) {
  AreaChart chart = small_area_chart();
  chart.spans = {{0, 2.9, "backward"}, {2.9, 3, "optimizer"}};
  EXPECT_NE(to_svg(chart).find(">optimizer<"), std::string::npos);
  chart.spans = {{0, 0.01, "too narrow for this"}, {0.01, 3, "the rest"}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.find(">too narrow for this<"), std::string::npos);
  EXPECT_NE(svg.find(">the rest<"), std::string::npos);
}

// The heights of a layer's upper edge, from its path "Mx yHxVy...".
std::vector<double> upper_edge(const std::string& svg, const std::string& color) {
  const size_t end = svg.find(color + "\" fill-opacity");
  const size_t begin = svg.rfind("d=\"M", end);
  std::vector<double> heights;
  std::string path = svg.substr(begin + 4, svg.find('"', begin + 4) - begin - 4);
  heights.push_back(std::stod(path.substr(path.find(' ') + 1)));
  for (size_t at = path.find('V'); at != path.npos; at = path.find('V', at + 1)) {
    heights.push_back(std::stod(path.substr(at + 1)));
  }
  return heights;
}

TEST(AreaChart, LayersStandOnEachOther) {
  const std::string svg = to_svg(small_area_chart());
  const auto lower = upper_edge(svg, "#0072b2"), upper = upper_edge(svg, "#d55e00");
  ASSERT_GE(lower.size(), 1u);
  ASSERT_GE(upper.size(), 4u) << "0, 1, 3 and 0 above 2";
  EXPECT_DOUBLE_EQ(upper[0], lower[0]) << "nothing lies above the first layer at 0";
  const double unit = (upper[0] - upper[2]) / 3;  // pixels; y grows downwards
  EXPECT_GT(unit, 0);
  EXPECT_NEAR(upper[0] - upper[1], unit, 0.11) << "coordinates have one decimal";
}

TEST(AreaChart, DrawsWhateverTheDataHold) {
  AreaChart chart = small_area_chart();
  chart.layers[2].values = {std::nan(""), -1, std::numeric_limits<double>::infinity(), 1};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NO_THROW(render_png(svg, 1));
  AreaChart empty;
  EXPECT_NE(to_svg(empty).find("no data"), std::string::npos);
  AreaChart point;
  point.x = {5};
  point.layers = {{"one", 0, {3}}};
  EXPECT_NO_THROW(render_png(to_svg(point), 1));
}

TEST(AreaChart, MistakesAreNamed) {
  AreaChart chart = small_area_chart();
  chart.layers[0].values.pop_back();
  EXPECT_THROW(to_svg(chart), UserError);
  chart = small_area_chart();
  chart.x = {0, 2, 1, 3};
  EXPECT_THROW(to_svg(chart), UserError);
}

}  // namespace
}  // namespace flashstep::measure
