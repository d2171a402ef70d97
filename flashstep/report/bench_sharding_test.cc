#include "flashstep/report/bench_sharding.h"

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

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

// An update of 20 ms whose kernels run until 9 ms and whose two collectives overlap: sending runs
// from 4 to 16 ms, 7 ms of it with nothing computing; from 16 to 17 and from 19 ms on nothing runs.
std::vector<std::string> traced_lines() {
  return {line("none", 80, 0.1),
          R"({"contestant": "none", "compute": [0, 0.0155], "copies": [], "communication": [],
              "trace_trouble": "", "update_seconds": 0.016, "host_seconds": 0.001})",
          line("whole", 40, 0.09),
          R"({"contestant": "whole", "compute": [0, 0.009, 0.017, 0.019], "copies": [],
              "communication": [0.004, 0.012, 0.010, 0.016], "trace_trouble": "",
              "update_seconds": 0.020, "host_seconds": 0.005})",
          line("flat", 40, 0.09),
          R"({"contestant": "flat", "compute": [], "copies": [], "communication": [],
              "trace_trouble": "nothing seen", "update_seconds": 0, "host_seconds": 0})"};
}

TEST(BenchSharding, TableSaysWhatAnUpdateTakesItsTimeFor) {
  ShardingPlan plan;
  plan.c.context_length = 128;
  plan.c.device = "cuda";
  const ShardingResult result = sharding_result(plan, traced_lines());
  const measure::Table table = sharding_table({result}, plan);
  const auto cell = [&](size_t row, const std::string& name) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      if (table.columns[i].name == name)
        return measure::display(table.rows[row][i], table.columns[i].format);
    }
    return "no column " + name;
  };
  EXPECT_EQ(cell(1, "computing"), "11.00");
  EXPECT_EQ(cell(1, "communication"), "12.00");
  EXPECT_EQ(cell(1, "exposed"), "7.00");
  EXPECT_EQ(cell(1, "idle"), "2.00");
  EXPECT_EQ(cell(1, "host"), "5.00");
  EXPECT_EQ(cell(1, "launches"), "2");
  EXPECT_EQ(cell(0, "communication"), "0.00");
  EXPECT_EQ(cell(2, "update"), "10.00");
  EXPECT_EQ(cell(2, "computing"), "-") << "no trace, no numbers";

  const std::string reasons = join(sharding_reasons({result}), "\n");
  EXPECT_NE(reasons.find("whole: an update of 20.00 ms computes for 11.00 ms, 1.42 x a rank's "
                         "share of 15.50 ms without shards; 58.3 % of 12.00 ms of sending exposed; "
                         "idle 2.00 ms; the host launches for 5.00 ms."),
            reasons.npos)
      << reasons;
  EXPECT_EQ(reasons.find("flat"), reasons.npos) << reasons;
}

TEST(BenchSharding, LanesOfTheUpdatesThatWereTraced) {
  ShardingPlan plan;
  plan.c.context_length = 128;
  const auto pictures = sharding_pictures({sharding_result(plan, traced_lines())}, "machine");
  ASSERT_EQ(pictures.size(), 1u);
  EXPECT_EQ(pictures[0].name, "xl_2x4x128_fp32_update");
  const auto& chart = std::get<measure::LaneChart>(pictures[0].picture);
  ASSERT_EQ(chart.groups.size(), 2u);
  EXPECT_EQ(chart.groups[0].title, "none: 16.00 ms");
  EXPECT_EQ(chart.groups[1].title, "whole: 20.00 ms; 58.3 % of 12.00 ms of sending exposed");
  EXPECT_EQ(chart.groups[1].lanes.size(), 2u);
  EXPECT_TRUE(sharding_pictures({sharding_result(plan, {line("none", 80, 0.1)})}, "").empty());
}

TEST(BenchSharding, PresetsOfTheYears) {
  for (const char* year : {"2024", "2025", "2026"})
    EXPECT_FALSE(cases_of(sharding_preset(year).axes).empty());
  EXPECT_THROW(sharding_preset("2023"), UserError);
}

TEST(BenchSharding, NamesSayWhatTravelsHow) {
  for (const std::string& name : sharding_names()) EXPECT_NO_THROW(sharding_by_name(name)) << name;
  EXPECT_EQ(sharding_by_name("flat").shard_optimizer, "flat");
  EXPECT_EQ(sharding_by_name("flat").peer_copies, "all");
  EXPECT_EQ(sharding_by_name("whole nccl").shard_optimizer, "whole");
  EXPECT_EQ(sharding_by_name("whole nccl").peer_copies, "none");
  EXPECT_EQ(sharding_by_name("flat scattered").flat_buckets, "yes");
  EXPECT_EQ(sharding_by_name("flat nccl").flat_buckets, "chosen");
  for (const char* wrong : {"flat gloo", "flat copies"})
    EXPECT_THROW(sharding_by_name(wrong), UserError) << wrong;
}

}  // namespace
}  // namespace flashstep::report
