#include "flashstep/report/bench_attention_cases.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::report {
namespace {

TEST(BenchAttentionCases, HandoutIsTheCoursesTable) {
  const auto preset = attention_preset("handout");
  EXPECT_EQ(preset.cases.size(), 80u);  // 10 lengths x 4 head dims x 2 dtypes
  EXPECT_EQ(preset.passes.size(), 3u);
  std::set<std::string> different;
  for (const auto& c : preset.cases) {
    different.insert(describe(c));
    EXPECT_TRUE(c.causal && c.batch == 1 && c.heads == 1 && c.n == c.m) << describe(c);
    EXPECT_TRUE(c.n >= 128 && c.n <= 65536) << describe(c);
  }
  EXPECT_EQ(different.size(), 80u);
}

TEST(BenchAttentionCases, OtherPresetsAreThere) {
  EXPECT_EQ(attention_preset("throughput").cases.size(), 12u);
  EXPECT_EQ(attention_preset("cpu").cases.size(), 64u);
  const auto leaderboard = attention_preset("leaderboard");
  ASSERT_EQ(leaderboard.cases.size(), 1u);
  EXPECT_EQ(describe(leaderboard.cases[0]), "bf16 B 1 H 16 N 16384 D 64 causal");
  EXPECT_EQ(leaderboard.passes, std::vector<AttentionPass>{AttentionPass::kBoth});
  for (const auto& name : attention_presets()) EXPECT_EQ(attention_preset(name).name, name);
  EXPECT_THROW(attention_preset("handouts"), UserError);
}

TEST(BenchAttentionCases, SweepTakesPairs) {
  const auto own = attention_preset("sweep", {{128, 64}, {256, 128}});
  ASSERT_EQ(own.cases.size(), 4u);  // two dtypes
  EXPECT_EQ(own.cases[0].n, 128);
  EXPECT_EQ(own.cases[0].m, 64);
  const auto cases = attention_preset("sweep").cases;
  EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [](const auto& c) { return c.n > c.m; }));
  EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [](const auto& c) { return c.n < c.m; }));
}

TEST(BenchAttentionCases, FiltersLeaveWhatTheyName) {
  AttentionFilter filter;
  filter.dtypes = {"bf16"};
  filter.lengths = {128, 1024};
  filter.head_dims = {64};
  filter.passes = {AttentionPass::kBackward};
  const auto preset = filtered(attention_preset("handout"), filter);
  EXPECT_EQ(preset.cases.size(), 2u);
  EXPECT_EQ(preset.passes.size(), 1u);
  filter.lengths = {100};
  EXPECT_TRUE(filtered(attention_preset("handout"), filter).cases.empty());
}

TEST(BenchAttentionCases, CountsWork) {
  const AttentionCase c{"bf16", 2, 0, 4, 4, 8, true};  // no heads count as one
  EXPECT_EQ(pass_flops(c, AttentionPass::kForward), 4.0 * 2 * 10 * 8);
  EXPECT_EQ(pass_flops(c, AttentionPass::kBoth), 3.5 * 4 * 2 * 10 * 8);
  EXPECT_EQ(pass_bytes(c, AttentionPass::kForward), 2.0 * 4 * (2 * 4 * 8) + 4 * 2 * 4);
  EXPECT_EQ(pass_bytes(c, AttentionPass::kBoth),
            pass_bytes(c, AttentionPass::kForward) + pass_bytes(c, AttentionPass::kBackward));
  EXPECT_EQ(pass_by_name("both"), AttentionPass::kBoth);
  EXPECT_THROW(pass_by_name("sideways"), UserError);
}

}  // namespace
}  // namespace flashstep::report
