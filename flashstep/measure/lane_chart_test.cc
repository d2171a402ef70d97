#include "flashstep/measure/lane_chart.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/measure/png.h"
#include "flashstep/measure/test_text.h"

namespace flashstep::measure {
namespace {

LaneChart small_lane_chart() {
  LaneChart chart;
  chart.title = "A step <of> two lanes";
  chart.groups = {{"naive",
                   {{"compute", {{0, 0.010}, {0.010, 0.020}, {0.030, 0.040}}, 0, "30 ms"},
                    {"communication", {{0.040, 0.050}}, 1}}}};
  return chart;
}

TEST(LaneChart, DrawsEverySpanInItsColourWithNamesAndLabels) {
  const std::string svg = to_svg(small_lane_chart());
  for (const char* text : {">naive<", ">compute<", ">communication<", ">30 ms<", "&lt;of&gt;"})
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  EXPECT_EQ(occurrences(svg, "z\"") + occurrences(svg, "zM"), 3u) << "the two that touch are one\n"
                                                                  << svg;
  EXPECT_EQ(occurrences(svg, "#0072b2"), 1u);
  EXPECT_EQ(occurrences(svg, "#d55e00"), 1u);
  EXPECT_NO_THROW(render_png(svg, 1));
}

TEST(LaneChart, DrawsWhateverTheDataHold) {
  LaneChart chart = small_lane_chart();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  chart.groups[0].lanes[0].spans = {{nan, 1}, {0, inf}, {-1, 2}, {3, 3}, {5, 4}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NO_THROW(render_png(svg, 1));
  EXPECT_NO_THROW(render_png(to_svg(LaneChart()), 1));
}

}  // namespace
}  // namespace flashstep::measure
