#include "flashstep/report/bench_sharding.h"

#include <gtest/gtest.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

std::string line(const std::string& contestant, double state_bytes, double seconds) {
  return str(R"({"contestant": ")", contestant, R"(", "memory": [100, 200, 300, 40, 40, )",
             state_bytes, R"(], "optimizer": [0.01], "total": [)", seconds, "]}");
}

std::string verdict(double shard_bytes, double shard_seconds) {
  ShardingPlan plan;
  const std::vector<std::string> lines = {R"({"begins": "none"})", line("none", 80, 0.1),
                                          line("whole", shard_bytes, shard_seconds)};
  return join(sharding_verdict({sharding_result(plan, lines)}), "\n");
}

TEST(BenchSharding, VerdictNamesBars) {
  const std::string kept = verdict(40.5, 0.095);
  EXPECT_NE(kept.find("50.62 % of the state a rank (bar 51.00: kept)"), kept.npos) << kept;
  EXPECT_NE(kept.find("0.950 x the step without shards (bar 1: kept)"), kept.npos) << kept;
  const std::string broken = verdict(41, 0.11);
  EXPECT_NE(broken.find("(bar 51.00: BROKEN)"), broken.npos) << broken;
  EXPECT_NE(broken.find("(bar 1: BROKEN)"), broken.npos) << broken;
}

TEST(BenchSharding, TableHasTheoryBesideWhatWasMeasured) {
  ShardingPlan plan;
  plan.c.context_length = 128;
  ShardingResult result = sharding_result(plan, {line("none", 80, 0.1)});
  result.runs[1].trouble = "OOM: too large";
  const auto table = sharding_table({result}, plan);
  ASSERT_EQ(table.rows.size(), 3u);
  // xl: 8 bytes of moments for each of 1,998,235,200 parameters; half of them on each of two ranks.
  const auto text = measure::to_text(table);
  EXPECT_NE(text.find("14.888"), text.npos) << text;
  EXPECT_NE(text.find("OOM"), text.npos) << text;
  EXPECT_EQ(sharding_verdict({result}).front(), "Verdict: nothing to compare.");
}

TEST(BenchSharding, PresetsOfTheYears) {
  for (const char* year : {"2024", "2025", "2026"})
    EXPECT_FALSE(cases_of(sharding_preset(year).axes).empty());
  EXPECT_THROW(sharding_preset("2023"), UserError);
}

}  // namespace
}  // namespace flashstep::report
