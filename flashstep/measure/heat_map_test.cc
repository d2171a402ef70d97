#include "flashstep/measure/heat_map.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/measure/png.h"

namespace flashstep::measure {
namespace {

HeatMap small_map() {
  HeatMap map;
  map.title = "x the best <peer>";
  map.x_label = "seq_len";
  map.y_label = "head_dim";
  map.columns = {"128", "256", "512"};
  map.rows = {"16", "64"};
  map.values = {0.25, 1, 4, std::nan(""), 1.5, 16};
  return map;
}

TEST(HeatMap, ShowsEveryFieldWithItsValue) {
  const std::string svg = to_svg(small_map());
  for (const char* text :
       {">0.250<", ">1.00<", ">4.00<", ">1.50<", ">16.0<", ">64<", ">512<", "&lt;peer&gt;"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NO_THROW(render_png(svg, 1));
}

TEST(HeatMap, ColoursFactorsUpAndDownAlike) {
  EXPECT_EQ(ratio_color(1), "#ffffff");
  EXPECT_EQ(ratio_color(4), "#0072b2");
  EXPECT_EQ(ratio_color(100), "#0072b2");
  EXPECT_EQ(ratio_color(0.25), "#d55e00");
  EXPECT_EQ(ratio_color(0.5), "#eaaf80");  // halfway to the strongest
}

TEST(HeatMap, DrawsWhateverTheDataHold) {
  HeatMap map = small_map();
  const double inf = std::numeric_limits<double>::infinity();
  map.values = {0, -1, inf, -inf, 1e-300, 1e300};
  EXPECT_NO_THROW(render_png(to_svg(map), 1));
  EXPECT_NE(to_svg(HeatMap()).find("no data"), std::string::npos);
}

TEST(HeatMap, WantsAValueForEachField) {
  HeatMap map = small_map();
  map.values.pop_back();
  EXPECT_THROW(to_svg(map), UserError);
}

}  // namespace
}  // namespace flashstep::measure
