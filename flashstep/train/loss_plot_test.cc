#include "flashstep/train/loss_plot.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Values = std::vector<double>;

TEST(Curves, FieldsMayBeMissingAndTheLastLineTorn) {
  const RunCurves curves = parse_curves(
      "{\"step\":0,\"val_loss\":9.5,\"bigram_loss\":3.25}\n"
      "{\"step\":1,\"loss\":9.0,\"lr\":1e-3}\n"
      "{\"step\":2,\"loss\":null}\n"
      "{\"step\":3,\"loss\":7,\"val_loss\":7.5}\n"
      "{\"step\":4,\"lo",
      "loss", "test");
  EXPECT_EQ(curves.steps, (Values{1, 2, 3}));
  EXPECT_EQ(curves.values[0], 9);
  EXPECT_TRUE(std::isnan(curves.values[1]));
  EXPECT_EQ(curves.values[2], 7);
  EXPECT_EQ(curves.val_steps, (Values{0, 3}));
  EXPECT_EQ(curves.val_losses, (Values{9.5, 7.5}));
  EXPECT_EQ(curves.bigram_loss, 3.25);
  EXPECT_TRUE(parse_curves("", "loss", "test").steps.empty());
  EXPECT_EQ(parse_curves("{\"step\":1,\"lr\":0.5}\n", "lr", "test").values, (Values{0.5}));
}

TEST(Curves, DamageIsNamedWithItsLine) {
  for (const char* damaged : {"{\"step\":1}\nnoise\n", "{\"step\":1}\n[1]\n", "{\"step\":1}\n{}\n",
                              "{\"step\":1}\n{\"step\":\"a\"}\n", "{\"step\":1}\n\n",
                              "{\"step\":1}\n{\"step\":2,\"loss\":\"a\"}\n",
                              "{\"step\":1}\n{\"step\":2,\"val_loss\":true}\n"}) {
    try {
      parse_curves(damaged, "loss", "some/metrics.jsonl");
      ADD_FAILURE() << damaged;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("line 2 of some/metrics.jsonl"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Curves, SmoothingKeepsLinesAndGapsAndSettlesAtTheEnd) {
  Values line(1000);
  for (size_t i = 0; i < line.size(); ++i) line[i] = static_cast<double>(i);
  const Values same = smoothed(line);  // symmetric windows leave a straight line as it is
  for (size_t i = 0; i < line.size() - 10; ++i) EXPECT_NEAR(same[i], line[i], 1e-9);
  EXPECT_NEAR(same.back(), 994, 1e-9);  // the mean of the last 11

  Values noise(1000);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = i % 2 == 0 ? 1 : -1;
  noise[500] = std::nan("");
  const Values calm = smoothed(noise);
  EXPECT_EQ(calm.front(), 1);
  EXPECT_NEAR(calm[300], 0, 0.06);
  EXPECT_NEAR(calm.back(), 0, 0.1);
  EXPECT_TRUE(std::isnan(calm[500]));
  EXPECT_FALSE(std::isnan(calm[499]));
  EXPECT_TRUE(smoothed({}).empty());
  EXPECT_EQ(smoothed({3}), (Values{3}));
}

TEST(Curves, WhatIsExactIsNotSmoothed) {
  RunCurves run;
  run.name = "run";
  for (int i = 0; i < 500; ++i) {
    run.steps.push_back(i);
    run.values.push_back(i < 100 ? i : 100);
  }
  EXPECT_EQ(curves_plot({run}, "loss").series.size(), 2U);
  const measure::Plot schedule = curves_plot({run}, "lr");
  ASSERT_EQ(schedule.series.size(), 1U);
  EXPECT_EQ(schedule.series[0].y, run.values);
  run.steps.resize(20);
  run.values.resize(20);
  EXPECT_EQ(curves_plot({run}, "loss").series.size(), 1U);
  EXPECT_EQ(curves_plot({run, run}, "loss").series.size(), 2U);
}

TEST(Curves, TheSubtitleSaysWhereARunDiverged) {
  const auto subtitle = [](Values values, Values val_steps, Values val_losses) {
    RunCurves run;
    for (size_t i = 0; i < values.size(); ++i) run.steps.push_back(static_cast<double>(i + 1));
    run.values = std::move(values);
    run.val_steps = std::move(val_steps);
    run.val_losses = std::move(val_losses);
    return curves_plot({run}, "loss").subtitle;
  };
  const double nan = std::nan("");
  EXPECT_EQ(subtitle({6, 5, nan, 4, nan, nan}, {0, 3, 6}, {6.5, nan, nan}),
            "step 6: training loss not finite since step 5, held-out loss not finite since step 3");
  EXPECT_EQ(subtitle({6, 5, nan, 4}, {0, 3}, {6.5, 5.5}),
            "step 4: training loss 4.000, held-out loss 5.500 at step 3");
  EXPECT_EQ(subtitle({nan}, {}, {}), "step 1: training loss not finite since step 1");
}

TEST(CurvesPlot, BigramModelsOfSeveralRunsAreToldApart) {
  const auto labels = [](const std::vector<double>& bigram_losses) {
    std::vector<RunCurves> runs;
    for (const double loss : bigram_losses) {
      RunCurves& run = runs.emplace_back();
      run.name = "run" + std::to_string(runs.size());
      run.steps = {1, 2};
      run.values = {6, 5};
      run.bigram_loss = loss;
    }
    std::vector<std::string> found;
    for (const auto& reference : curves_plot(runs, "loss").references)
      found.push_back(reference.label);
    return found;
  };
  EXPECT_EQ(labels({3.25, 3.25}), std::vector<std::string>{"bigram model 3.250"});
  EXPECT_EQ(labels({3.25, 3.25, 2.5}),
            (std::vector<std::string>{"bigram model of run1 3.250", "bigram model of run3 2.500"}));
}

class Runs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    for (const char* name : {"a", "b", "other/a"}) {
      make_directories(folder_ / name);
      std::string lines;
      for (int step = 1; step <= 200; ++step)
        lines += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(5.0 / step) +
                 (step % 50 == 0 ? ",\"val_loss\":1.5" : "") + "}\n";
      write_file(folder_ / name / "metrics.jsonl", lines);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / "flashstep_loss_plot_test";
};

TEST_F(Runs, OneRunAndSeveral) {
  const measure::Plot one = plot_runs({folder_ / "a/"}, "loss");
  EXPECT_EQ(one.title, "a");
  EXPECT_EQ(one.series.size(), 3U);
  EXPECT_EQ(one.subtitle, "step 200: training loss 0.025, held-out loss 1.500");

  const measure::Plot three =
      plot_runs({folder_ / "a", folder_ / "b", folder_ / "other/a"}, "loss");
  std::vector<std::string> names;
  for (const auto& series : three.series)
    if (!series.name.empty()) names.push_back(series.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{(folder_ / "a").string(), "b", (folder_ / "other/a").string(),
                                      "each step", "held-out"}));
}

TEST_F(Runs, DrawsWithTheBigram) {
  const measure::WrittenPlot written = draw_loss({folder_ / "b"}, folder_ / "b/loss", 3.5);
  EXPECT_NE(read_file(written.svg).find("bigram model 3.500"), std::string::npos);
  EXPECT_THROW(draw_loss({folder_ / "missing"}, folder_ / "x"), UserError);
  EXPECT_THROW(plot_runs({folder_ / "a"}, "speed"), UserError);
}

}  // namespace
}  // namespace flashstep
