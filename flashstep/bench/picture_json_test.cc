#include "flashstep/bench/picture_json.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

measure::Plot some_plot() {
  measure::Plot plot;
  plot.title = "Time";
  plot.subtitle = "of <everything>";
  plot.footnote = "a machine; \"quoted\"";
  plot.x = {"N", measure::Scale::kLog2};
  plot.y = {"ms", measure::Scale::kLog};
  plot.series = {{.name = "ours",
                  .kind = measure::Series::Kind::kLineAndPoints,
                  .x = {1, 2, 4},
                  .y = {0.1 + 0.2, NAN, kInfinity},
                  .dashed = true}};
  plot.references = {{7.5, "limit", false}};
  plot.width = 640;
  return plot;
}

NamedPicture round_trip(const NamedPicture& picture) {
  return picture_from_json(to_json(picture), "test");
}

TEST(PictureJson, APlotIsDrawnAlike) {
  const NamedPicture stored = round_trip({"time", some_plot()});
  EXPECT_EQ(stored.name, "time");
  EXPECT_EQ(caption_of(stored), "Time: of <everything>");
  EXPECT_EQ(to_svg(stored), measure::to_svg(some_plot()));
  const auto& plot = std::get<measure::Plot>(stored.picture);
  EXPECT_EQ(plot.series[0].y[0], 0.1 + 0.2) << "numbers are exact";
  EXPECT_TRUE(std::isnan(plot.series[0].y[1]));
  EXPECT_EQ(plot.series[0].y[2], kInfinity);
  EXPECT_EQ(to_json(stored), to_json(NamedPicture{"time", some_plot()}));
}

TEST(PictureJson, BarsKeepTheirLabels) {
  measure::Plot plot;
  plot.title = "Bars";
  plot.categories = {"a", "b"};
  plot.series = {{.name = "x",
                  .kind = measure::Series::Kind::kBars,
                  .y = {1, NAN},
                  .labels = {"", "OOM"},
                  .color = 2}};
  EXPECT_EQ(to_svg(round_trip({"bars", plot})), measure::to_svg(plot));
}

TEST(PictureJson, OlderProgramsFindTheirLists) {
  for (const char* key : {"\"low\": []", "\"high\": []"})
    EXPECT_NE(to_json(NamedPicture{"time", some_plot()}).find(key), std::string::npos) << key;
  EXPECT_NE(to_json(NamedPicture{"map", measure::HeatMap()}).find("\"labels\": []"),
            std::string::npos);
}

TEST(PictureJson, AHeatMapIsDrawnAlike) {
  measure::HeatMap map;
  map.title = "Ratios";
  map.x_label = "N";
  map.y_label = "D";
  map.columns = {"1", "2"};
  map.rows = {"16"};
  map.values = {1.5, NAN};
  EXPECT_EQ(to_svg(round_trip({"map", map})), measure::to_svg(map));
}

TEST(PictureJson, LanesAreDrawnAlike) {
  measure::LaneChart chart;
  chart.title = "What runs when";
  chart.groups = {{"naive", {{"compute", {{0, 0.001}, {0.002, 0.003}}, 1, "2 ms"}}}};
  EXPECT_EQ(to_svg(round_trip({"lanes", chart})), measure::to_svg(chart));
}

TEST(PictureJson, WhatIsOnlyDrawnStaysSo) {
  const NamedPicture drawn{"flame", std::string("<svg>\xC3\xA4</svg>")};
  NamedPicture stored = picture_from_json(to_json(drawn), "test");
  set_footnote(stored, "another machine");
  EXPECT_EQ(to_svg(stored), "<svg>\xC3\xA4</svg>");
  EXPECT_EQ(caption_of(stored), "flame");
  EXPECT_EQ(caption_of({"flame", "<svg><title>All of it</title><g><title>x</title></g></svg>"}),
            "All of it");
}

TEST(PictureJson, NumbersHaveOnlyTwoWords) {
  const auto from = [](const std::string& value) {
    return picture_from_json(str(R"({"name": "x", "picture": "heat map", "title": "",)",
                                 R"( "subtitle": "", "footnote": "", "x_label": "",)",
                                 R"( "y_label": "", "columns": ["1"], "rows": ["1"],)",
                                 R"( "labels": [], "width": 720, "values": [)", value, "]}"),
                             "file.json");
  };
  EXPECT_EQ(std::get<measure::HeatMap>(from("\"-inf\"").picture).values.at(0), -INFINITY);
  EXPECT_EQ(std::get<measure::HeatMap>(from("\"inf\"").picture).values.at(0), INFINITY);
  for (const char* text : {"\"\"", "\"nan\"", "\"12\"", "true"})
    EXPECT_THROW(from(text), UserError) << text;
}

TEST(PictureJson, RefusesWhatIsNoPicture) {
  const std::string good = to_json(NamedPicture{"time", some_plot()});
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{\"name\": \"x\"}"),
        good.substr(0, good.size() / 2), std::string("{\"name\": \"x\", \"picture\": \"film\"}"),
        std::string(100'000, '[')}) {
    EXPECT_THROW(picture_from_json(bad, "file.json"), UserError) << bad.substr(0, 60);
  }
  try {
    picture_from_json("{}", "file.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("file.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashstep::tools
