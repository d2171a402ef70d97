#include "flashstep/measure/plot.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <regex>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"
#include "flashstep/measure/png.h"
#include "flashstep/measure/svg.h"
#include "flashstep/measure/test_text.h"

namespace flashstep::measure {
namespace {

using Kind = Series::Kind;

Plot plot_of(std::vector<double> x, std::vector<double> y, Kind kind = Kind::kLine) {
  Plot plot;
  plot.title = "Title";
  Series series;
  series.name = "data";
  series.kind = kind;
  series.x = std::move(x);
  series.y = std::move(y);
  plot.series.push_back(series);
  return plot;
}

Plot small_plot() {
  Plot plot = plot_of({0, 1, 2, 3}, {4, 2, 1.5, 1.25}, Kind::kLineAndPoints);
  plot.title = "Loss & \"more\" <of> it";
  plot.subtitle = "four steps";
  plot.footnote = "made by a test";
  plot.x.label = "step";
  plot.y.label = "loss";
  plot.references = {{3, "bigram"}, {2, "half", true}};
  return plot;
}

// librsvg refuses what is not well-formed; every number must be finite in any case.
void expect_sound(const Plot& plot) {
  const std::string svg = to_svg(plot);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_LT(svg.size(), 200000U);
  EXPECT_NO_THROW(render_png(svg, 1)) << svg.substr(0, 2000);
}

TEST(Plot, GoldenSvg) {
  const std::filesystem::path golden = std::filesystem::path(std::getenv("FLASHSTEP_SOURCE")) /
                                       "flashstep/measure/testdata/small_plot.svg";
  const std::string svg = to_svg(small_plot());
  // FLASHSTEP_WRITE_GOLDEN=1 writes it anew; look at it before you commit it.
  if (std::getenv("FLASHSTEP_WRITE_GOLDEN") != nullptr) write_file(golden, svg);
  EXPECT_EQ(svg, read_file(golden));
}

TEST(Plot, TextIsEscapedAndStaysText) {
  const std::string svg = to_svg(small_plot());
  EXPECT_NE(svg.find("Loss &amp; &quot;more&quot; &lt;of&gt; it</text>"), std::string::npos);
  EXPECT_EQ(xml_escape("a\x01\xff\n'"), "a\uFFFD\uFFFD &#39;");
}

TEST(Plot, WhatCannotBeDrawnIsLeftOut) {
  const std::vector<double> wild = {NAN, INFINITY, -INFINITY, 1e308, -1e308, 0, -5, 3, 1e-300, NAN};
  std::vector<double> x(wild.size());
  std::iota(x.begin(), x.end(), 0.0);
  for (const Scale scale : {Scale::kLinear, Scale::kLog, Scale::kLog2}) {
    for (const Kind kind : {Kind::kLine, Kind::kPoints, Kind::kLineAndPoints}) {
      Plot plot = plot_of(x, wild, kind);
      plot.references = {{NAN, "a"}, {INFINITY, "b", true}, {-1, "c"}, {4, "d"}};
      plot.x.scale = plot.y.scale = scale;
      expect_sound(plot);
      std::swap(plot.series[0].x, plot.series[0].y);
      expect_sound(plot);
    }
  }
}

TEST(Plot, EmptyAndConstantAndSingle) {
  expect_sound(Plot());
  EXPECT_NE(to_svg(Plot()).find("no data"), std::string::npos);
  expect_sound(plot_of({}, {}));
  expect_sound(plot_of({1, 2}, {NAN, NAN}));
  expect_sound(plot_of({1, 2, 3}, {7, 7, 7}));
  expect_sound(plot_of({1, 2, 3}, {0, 0, 0}));
  expect_sound(plot_of({1}, {1e-320}));
  const std::string one = to_svg(plot_of({5}, {2}));
  EXPECT_EQ(occurrences(one, "<circle"), 1U);  // a line of one point shows as a dot
}

TEST(Plot, GapsSplitLines) {
  const std::string svg = to_svg(plot_of({0, 1, 2, 3, 4, 5}, {1, 2, NAN, 2, 1, 3}));
  EXPECT_EQ(occurrences(svg, "<path"), 2U);
}

TEST(Plot, ThinningKeepsExtremesEndsAndOrder) {
  Series series;
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i);
    series.y.push_back(std::sin(i * 0.001));
  }
  series.y[12345] = 50;
  series.y[76543] = -50;
  internal::Frame frame;
  frame.right = 600;
  frame.bottom = 100;
  frame.x = {0, 99999};
  frame.y = {-50, 50};
  const auto runs = internal::runs_of(series, frame);
  ASSERT_EQ(runs.size(), 1U);
  const auto& run = runs[0];
  EXPECT_LE(run.size(), 4U * 601);
  EXPECT_EQ(run.front().x, frame.x_at(0));
  EXPECT_EQ(run.back().x, frame.x_at(99999));
  double low = 1e9, high = -1e9;
  for (size_t i = 0; i < run.size(); ++i) {
    low = std::min(low, run[i].y);
    high = std::max(high, run[i].y);
    if (i > 0) {
      EXPECT_GE(run[i].x, run[i - 1].x);
    }
  }
  EXPECT_EQ(low, frame.y_at(50));
  EXPECT_EQ(high, frame.y_at(-50));
}

TEST(Plot, BarsStandOnZeroAndNameWhatIsMissing) {
  Plot plot;
  plot.categories = {"small", "a name that needs <several> lines",
                     "without_any_blank_to_break_it_at_all"};
  for (const char* name : {"ours", "peer"}) {
    Series bars;
    bars.name = name;
    bars.kind = Kind::kBars;
    bars.y = {10, -5, NAN};
    bars.labels = {"", "", "OOM"};
    plot.series.push_back(bars);
  }
  expect_sound(plot);
  EXPECT_EQ(occurrences(to_svg(plot), ">OOM</text>"), 2U);
  const std::string linear = to_svg(plot);
  plot.y.scale = Scale::kLog;
  EXPECT_EQ(to_svg(plot), linear) << "lengths on a logarithmic axis say nothing";
  EXPECT_EQ(occurrences(linear, "stroke-dasharray"), 0U);
  plot.series[1].color = 7;  // the first one's again
  EXPECT_EQ(occurrences(to_svg(plot), "stroke-dasharray"), 3U) << "two bars and their key";
  plot.categories.pop_back();
  EXPECT_THROW(to_svg(plot), UserError);
}

TEST(Plot, ManySeriesDifferInColourOrDashes) {
  std::vector<Series> series(21);
  for (int i = 0; i < 21; ++i) series.push_back({.color = i, .dashed = true});
  const auto pens = internal::pens_of(series);
  for (size_t i = 0; i < pens.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      EXPECT_TRUE(pens[i].color != pens[j].color || pens[i].dashes != pens[j].dashes)
          << i << " " << j;
  Plot plot;
  for (int i = 0; i < 40; ++i) {
    plot.series.push_back(plot_of({0, 1}, {0, static_cast<double>(i)}).series[0]);
    plot.series.back().name = std::string(static_cast<size_t>(i) * 5, 'x');
  }
  expect_sound(plot);
}

TEST(Plot, ALineBelowAnotherShows) {
  const auto widths = [](double second) {
    Plot plot = plot_of({0, 1, 2}, {1, 2, 3}, Kind::kLineAndPoints);
    plot.series.push_back(plot.series[0]);
    for (double& y : plot.series[1].y) y += second;
    const std::string svg = to_svg(plot);
    return std::pair(occurrences(svg, "stroke-width=\"5\""), occurrences(svg, "r=\"4.7\""));
  };
  EXPECT_EQ(widths(0), std::pair(size_t{1}, size_t{3}));
  EXPECT_EQ(widths(1), std::pair(size_t{0}, size_t{0}));
}

TEST(Plot, NothingLeavesThePage) {
  Plot plot = small_plot();
  plot.title = plot.subtitle = plot.x.label = plot.y.label = plot.footnote = std::string(300, 'W');
  plot.series[0].name = plot.references[0].label = plot.references[1].label = std::string(300, 'M');
  const std::string svg = to_svg(plot);
  const std::regex text("<text x=\"([-0-9.]+)\"[^>]*font-size=\"([0-9.]+)\"[^>]*>([^<]*)</text>");
  int texts = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), text), end; it != end; ++it, ++texts) {
    const std::string element = (*it)[0];
    const double width = text_width((*it)[3].str(), std::stod((*it)[2]));
    double left = std::stod((*it)[1]);
    if (element.find("\"middle\"") != std::string::npos) left -= width / 2;
    if (element.find("\"end\"") != std::string::npos) left -= width;
    EXPECT_GE(left, 0) << element;
    EXPECT_LE(left + width, plot.width) << element;
  }
  EXPECT_GE(texts, 10);
}

TEST(Plot, LengthsMustAgree) { EXPECT_THROW(to_svg(plot_of({1, 2}, {1})), UserError); }

TEST(Plot, FilesAreWritten) {
  const auto folder = std::filesystem::temp_directory_path() / "flashstep_plot_test";
  std::filesystem::create_directories(folder);
  const WrittenPlot written =
      write_plot(small_plot(), folder / "a.b");  // the point is no extension
  EXPECT_EQ(written.svg, folder / "a.b.svg");
  EXPECT_EQ(read_file(written.svg), to_svg(small_plot()));
  if (written.png) {
    EXPECT_EQ(*written.png, folder / "a.b.png");
    EXPECT_EQ(read_file(*written.png).substr(0, 8), "\x89PNG\r\n\x1a\n");
  }
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_plot(small_plot(), folder / "missing" / "x"), MachineError);
}

TEST(Svg, WrappingAndCutting) {
  EXPECT_EQ(wrap_text("aaa bbb ccc", 10, text_width("aaa bbb", 10), 3),
            (std::vector<std::string>{"aaa bbb", "ccc"}));
  EXPECT_EQ(wrap_text("aaa bbb ccc", 10, text_width("aaa", 10), 2),
            (std::vector<std::string>{"aaa", "b…"}));
  EXPECT_TRUE(wrap_text("", 10, 100, 2).empty());
  EXPECT_EQ(fit_text("abcdefghij", 10, text_width("abc…hij", 10), Cut::kMiddle), "abc…hij");
  EXPECT_EQ(fit_text("äöü", 10, 1000, Cut::kEnd), "äöü");
  EXPECT_EQ(svg_number(NAN), "0");
  EXPECT_EQ(svg_number(-0.01), "0");
  EXPECT_EQ(svg_number(12.34), "12.3");
}

}  // namespace
}  // namespace flashstep::measure
