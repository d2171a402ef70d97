#include "flashstep/report/bench_ddp.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::report {
namespace {

DdpPlan plan_of_three() {
  DdpPlan plan;
  plan.c.device = "cuda";
  plan.c.context_length = 512;
  plan.c.precision = "bf16";
  plan.contestants = {"none", "bucketed 25", "torch 25"};
  return plan;
}

// Steps of 100, 105 and 120 ms; 90 % of bucketed's communication is hidden.
std::vector<std::string> lines() {
  return {
      R"({"begins": "none"})",
      R"({"contestant": "none", "peak_bytes": 1000, "forward": [0.03, 0.03], "backward": [0.05, 0.05],
          "optimizer": [0.02, 0.02], "total": [0.1, 0.1]})",
      R"({"contestant": "bucketed 25", "weight_error": 0.0})",
      R"({"contestant": "bucketed 25", "peak_bytes": 1010, "forward": [0.03], "backward": [0.055],
          "waited": [0.0005], "optimizer": [0.02], "total": [0.105], "first": [0.207], "slowest": [0.106],
          "lead": [0.04], "carrier": "copies"})",
      R"({"contestant": "bucketed 25", "compute": [0, 0.09], "copies": [], "trace_trouble": "",
          "communication": [0.05, 0.06, 0.081, 0.091]})",
      R"({"contestant": "torch 25", "weight_error": 0.0})",
      R"({"contestant": "torch 25", "peak_bytes": 1170, "forward": [0.03], "backward": [0.07],
          "optimizer": [0.02], "total": [0.12]})",
      R"({"ends": true})"};
}

std::string all(const std::vector<std::string>& sentences) { return join(sentences, "\n"); }

TEST(BenchDdp, WhatRankZeroHandedOverBecomesRuns) {
  const DdpResult result = ddp_result(plan_of_three(), lines());
  ASSERT_EQ(result.runs.size(), 3u);
  EXPECT_EQ(result.runs[0].total.size(), 2u);
  EXPECT_DOUBLE_EQ(result.runs[1].median(), 0.105);
  EXPECT_EQ(result.runs[1].first, std::vector<double>{0.207});
  EXPECT_EQ(result.runs[1].slowest, std::vector<double>{0.106});
  EXPECT_EQ(result.runs[1].lead, std::vector<double>{0.04});
  EXPECT_EQ(result.runs[1].transport, "copies") << "whatever the name says";
  EXPECT_DOUBLE_EQ(result.runs[1].communication, 0.02);
  EXPECT_NEAR(result.runs[1].hidden, 0.95, 1e-9);
  EXPECT_EQ(result.runs[0].weight_error, -1);
  const auto table = ddp_table({result});
  EXPECT_EQ(table.rows.size(), 3u);
}

TEST(BenchDdp, VerdictNamesBars) {
  const std::string kept = all(ddp_verdict({ddp_result(plan_of_three(), lines())}));
  EXPECT_NE(kept.find("bucketed 25 MB adds 5.0 % to the step (bar 8 %: kept)"), kept.npos) << kept;
  EXPECT_NE(kept.find("torch 20.0 %: 1.143 x torch's speed"), kept.npos) << kept;
  EXPECT_NE(kept.find("95.0 % of the communication hidden (bar 90: kept); without the profiler, "
                      "which slows the host down, a step waits 0.50 ms for gradients when backward "
                      "is done: 97.5 % hidden."),
            kept.npos)
      << kept;
  EXPECT_NE(kept.find("1.00 % above a single process's (bar 2: kept)"), kept.npos) << kept;
  EXPECT_NE(kept.find("weights of all 2 compared runs"), kept.npos) << kept;

  DdpPlan plan = plan_of_three();
  plan.c.precision = "fp32";  // 5 %: 5.0 is not below
  auto slow = lines();
  slow[3] =
      R"({"contestant": "bucketed 25", "peak_bytes": 1100, "forward": [0.03], "backward": [0.06],
          "optimizer": [0.02], "total": [0.11]})";
  slow[2] = R"({"contestant": "bucketed 25", "weight_error": null})";  // NaN
  const std::string broken = all(ddp_verdict({ddp_result(plan, slow)}));
  EXPECT_NE(broken.find("10.0 % to the step (bar 5 %: BROKEN)"), broken.npos) << broken;
  EXPECT_NE(broken.find("(bar 2: BROKEN)"), broken.npos) << broken;
  EXPECT_NE(broken.find("WRONG weights in 1 of 2 runs"), broken.npos) << broken;
}

TEST(BenchDdp, SizesThatWereChosenAreNamed) {
  DdpPlan plan = plan_of_three();
  plan.contestants = {"none", "bucketed 0", "bucketed 25"};
  auto handed_over = lines();
  handed_over.push_back(
      R"({"contestant": "bucketed 0", "peak_bytes": 1010, "bucket_megabytes": 269.8,
          "forward": [0.03], "backward": [0.053], "optimizer": [0.02], "total": [0.103]})");
  const DdpResult result = ddp_result(plan, handed_over);
  EXPECT_EQ(result.runs[1].name(), "bucketed 270 MB (chosen)");
  EXPECT_EQ(result.runs[2].name(), "bucketed 25");
  const std::string table = measure::to_text(ddp_table({result}));
  EXPECT_NE(table.find("bucketed 270 MB (chosen)"), table.npos) << table;
  const std::string said = all(ddp_verdict({result}));
  EXPECT_NE(said.find("bucketed 270 MB (chosen) adds 3.0 % to the step"), said.npos) << said;
}

TEST(BenchDdp, NothingMeasuredIsNoPraise) {
  const DdpResult empty = ddp_result(plan_of_three(), {});
  EXPECT_EQ(all(ddp_verdict({empty})), "Verdict: no weights were compared.");
  EXPECT_EQ(ddp_table({empty}).rows.size(), 3u);
  for (const NamedPicture& named : ddp_pictures({empty}, "")) {
    std::visit([](const auto& picture) { EXPECT_FALSE(to_svg(picture).empty()); }, named.picture);
  }
}

TEST(BenchDdp, LanesOfThoseThatWereTraced) {
  const auto pictures = ddp_pictures({ddp_result(plan_of_three(), lines())}, "machine");
  ASSERT_EQ(pictures.size(), 3u);
  EXPECT_EQ(pictures[0].name, "xl_2x4x512_bf16_parts");
  EXPECT_EQ(pictures[1].name, "xl_2x4x512_bf16_lanes");
  const auto& chart = std::get<measure::LaneChart>(pictures[1].picture);
  ASSERT_EQ(chart.groups.size(), 1u);
  EXPECT_EQ(chart.groups[0].title, "bucketed 25: 95.0 % of the communication hidden");
}

TEST(BenchDdp, EveryStepByTheLeadThatItBeganWith) {
  const auto pictures = ddp_pictures({ddp_result(plan_of_three(), lines())}, "machine");
  ASSERT_EQ(pictures.size(), 3u);
  EXPECT_EQ(pictures[2].name, "xl_2x4x512_bf16_leads");
  const auto& plot = std::get<measure::Plot>(pictures[2].picture);
  ASSERT_EQ(plot.series.size(), 1u) << "of those that have leads";
  EXPECT_EQ(plot.series[0].name, "bucketed 25");
  EXPECT_EQ(plot.series[0].x, std::vector<double>{40});
  EXPECT_EQ(plot.series[0].y, std::vector<double>{105});
}

TEST(BenchDdp, PresetsOfTheYears) {
  EXPECT_EQ(ddp_preset("2024").axes.models.size(), 5u);
  EXPECT_EQ(ddp_preset("2025").bucket_megabytes, (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(ddp_preset("2026").axes.models, std::vector<std::string>{"xl26"});
  EXPECT_THROW(ddp_preset("2023"), UserError);
  for (const char* year : {"2024", "2025", "2026"})
    EXPECT_FALSE(cases_of(ddp_preset(year).axes).empty());
}

}  // namespace
}  // namespace flashstep::report
