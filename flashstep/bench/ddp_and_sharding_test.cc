#include "flashstep/bench/ddp_and_sharding.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/picture_json.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

using measure::Span;

BenchReplicaOptions options_of(const char* command, int64_t context, const char* precision) {
  BenchReplicaOptions options;
  options.plan.command = command;
  options.plan.c.model = resolved({.size = "xl", .context_length = context});
  options.plan.c.batch_size = 4;
  options.plan.c.precision = precision;
  options.plan.c.device = "cuda";
  return options;
}

BenchReplicaOptions ddp_options() {
  BenchReplicaOptions options = options_of("ddp", 512, "bf16");
  options.plan.implementations = {"none", "bucketed 25", "torch 25"};
  return options;
}

void put_steps(Record& record, double peak, double forward, double backward, double total) {
  record.samples["forward"] = {forward};
  record.samples["backward"] = {backward};
  record.samples["optimizer"] = {0.02};
  record.samples["total"] = {total};
  record.samples["peak_bytes"] = {peak};
}

// Steps of 100, 105 and 120 ms; 95 % of bucketed's communication is hidden.
std::vector<Record> three(const ReplicaPlan& plan) {
  std::vector<Record> records = blanks_of(plan);
  put_steps(records[0], 1000, 0.03, 0.05, 0.1);
  put_steps(records[1], 1010, 0.03, 0.055, 0.105);
  put_steps(records[2], 1170, 0.03, 0.07, 0.12);
  records[1].samples["waited"] = {0.0005};
  records[1].samples["first"] = {0.207};
  records[1].samples["slowest"] = {0.106};
  records[1].samples["lead"] = {0.04};
  records[1].facts["gradients by"] = "copies";
  for (const size_t i : {1, 2}) records[i].facts["weight_error"] = 0.0;
  put_trace({.compute = {Span{0, 0.09}},
             .copies = {},
             .communication = {Span{0.05, 0.06}, Span{0.081, 0.091}},
             .failure = ""},
            records[1]);
  complete(plan, records);
  return records;
}

BenchReport report_on(const BenchReplicaOptions& options, std::vector<Record> records) {
  return report_of(ddp_benchmark(options), Records(std::move(records)));
}

TEST(BenchDdp, TableOfWhatRanksMeasured) {
  const BenchReplicaOptions options = ddp_options();
  const measure::Table table = report_on(options, three(options.plan)).table;
  ASSERT_EQ(table.rows.size(), 3u);
  expect_row(table, 0, {{"weights", "-"}, {"lead", "-"}, {"by", "-"}});
  expect_row(table, 1,
             {{"step", "105.00"},
              {"first", "207.00"},
              {"slowest", "106.00"},
              {"lead", "40.00"},
              {"added", "5.0"},
              {"added memory", "1.00"},
              {"communication", "20.00"},
              {"hidden", "95.0"},
              {"by", "copies"}});
  for (const auto& said :
       {"bucketed 25 MB adds 5.0 % to the step and 1.00 % to peak memory, torch 20.0 %: 1.143 x "
        "torch's speed.",
        "95.0 % of the communication hidden; without the profiler, which slows the host down, a "
        "step waits 0.50 ms for gradients when backward is done: 97.5 % hidden.",
        "weights of all 2 compared runs"})
    EXPECT_TRUE(some_line_has(table.notes, {said})) << said;
}

// The command ends with exit code 1 then; c10d's are its own affair.
TEST(BenchDdp, WrongWeightsOfOursAreAFailure) {
  const BenchReplicaOptions options = ddp_options();
  std::vector<Record> records = three(options.plan);
  records[2].facts["weight_error"] = 0.5;
  complete(options.plan, records);
  EXPECT_EQ(report_on(options, records).failure, "");
  records[1].facts["weight_error"] = NAN;
  complete(options.plan, records);
  const BenchReport report = report_on(options, records);
  EXPECT_TRUE(contains(report.failure, "bucketed 25: expected weights within"));
  EXPECT_TRUE(some_line_has(report.table.notes, {"WRONG weights in 2 of 2 runs"}));
}

TEST(BenchDdp, SizesThatWereChosenAreNamed) {
  BenchReplicaOptions options = ddp_options();
  options.plan.implementations = {"none", "bucketed 0", "bucketed 25"};
  std::vector<Record> records = three(options.plan);
  records[1].facts["bucket_megabytes"] = 269.8;
  const BenchReport report = report_on(options, records);
  expect_row(report.table, 1, {{"wrapper", "bucketed 270 MB (chosen)"}});
  expect_row(report.table, 2, {{"wrapper", "bucketed 25"}});
  EXPECT_TRUE(
      some_line_has(report.table.notes, {"bucketed 270 MB (chosen) adds 5.0 % to the step"}));
}

TEST(BenchDdp, WithoutOneProcessNothingIsAdded) {
  const std::vector<Record> all = three(ddp_options().plan);
  const auto notes = report_on(ddp_options(), {all[1], all[2]}).table.notes;
  EXPECT_FALSE(some_line_has(notes, {"adds"}));
  EXPECT_TRUE(some_line_has(notes, {"weights of all 2 compared runs"}));
}

TEST(BenchDdp, NothingMeasuredIsNoPraise) {
  const BenchReplicaOptions options = ddp_options();
  const BenchReport report = report_on(options, blanks_of(options.plan));
  EXPECT_EQ(report.table.notes.back(), "Verdict: no weights were compared.");
  EXPECT_EQ(report.table.rows.size(), 3u);
  for (const NamedPicture& named : report.pictures) EXPECT_FALSE(to_svg(named).empty());
}

TEST(BenchDdp, PartsLanesAndLeads) {
  const BenchReplicaOptions options = ddp_options();
  const auto pictures = report_on(options, three(options.plan)).pictures;
  ASSERT_EQ(pictures.size(), 3u);
  EXPECT_EQ(pictures[0].name, "xl_2x4x512_bf16_parts");
  EXPECT_EQ(pictures[1].name, "xl_2x4x512_bf16_lanes");
  const auto& chart = std::get<measure::LaneChart>(pictures[1].picture);
  ASSERT_EQ(chart.groups.size(), 1u);
  EXPECT_EQ(chart.groups[0].title, "bucketed 25: 95.0 % of the communication hidden");
  EXPECT_EQ(pictures[2].name, "xl_2x4x512_bf16_leads");
  const auto& plot = std::get<measure::Plot>(pictures[2].picture);
  ASSERT_EQ(plot.series.size(), 1u) << "of those that have leads";
  EXPECT_EQ(plot.series[0].name, "bucketed 25");
  EXPECT_EQ(plot.series[0].x, std::vector<double>{40});
  EXPECT_EQ(plot.series[0].y, std::vector<double>{105});
}

// ---- sharding

void weigh(Record& record, double state_bytes, double seconds) {
  put_steps(record, 300, 0.03, 0.03, seconds);
  record.samples["optimizer"] = {0.01};
  record.facts["after init"] = 100;
  record.facts["before update"] = 200;
  record.facts["after update"] = 300;
  for (const char* name : {"parameters", "gradients"}) record.facts[name] = 40;
  record.facts["state"] = state_bytes;
}

void put_update(Record& record, const Trace& trace, double update, double host) {
  put_trace(trace, record);
  record.facts["update seconds"] = update;
  record.facts["host"] = host;
}

// An update of 20 ms whose kernels run until 9 ms and whose two collectives overlap: sending runs
// from 4 to 16 ms, 7 ms of it with nothing computing; from 16 to 17 and from 19 ms on nothing runs.
std::vector<Record> traced(const ReplicaPlan& plan) {
  std::vector<Record> records = blanks_of(plan);
  weigh(records[0], 80, 0.1);
  weigh(records[1], 40.5, 0.095);
  weigh(records[2], 40, 0.09);
  put_update(records[0],
             {.compute = {Span{0, 0.0155}}, .copies = {}, .communication = {}, .failure = ""},
             0.016, 0.001);
  put_update(records[1],
             {.compute = {Span{0, 0.009}, Span{0.017, 0.019}},
              .copies = {},
              .communication = {Span{0.004, 0.012}, Span{0.010, 0.016}},
              .failure = ""},
             0.020, 0.005);
  put_trace({.compute = {}, .copies = {}, .communication = {}, .failure = "nothing seen"},
            records[2]);
  complete(plan, records);
  return records;
}

TEST(BenchSharding, TableSaysWhatAnUpdateTakesItsTimeFor) {
  const BenchReplicaOptions options = options_of("sharding", 128, "fp32");
  const BenchReport report = report_of(sharding_benchmark(options), Records(traced(options.plan)));
  const measure::Table& table = report.table;
  expect_row(table, 0, {{"communication", "0.00"}});
  expect_row(table, 1,
             {{"computing", "11.00"},
              {"communication", "12.00"},
              {"exposed", "7.00"},
              {"idle", "2.00"},
              {"host", "5.00"},
              {"launches", "2"}});
  expect_row(table, 2, {{"update", "10.00"}, {"computing", "-"}, {"idle", "-"}});  // no trace
  // xl: 8 bytes of moments for each of 1,998,235,200 parameters; half of them on each of two ranks.
  EXPECT_TRUE(contains(measure::to_text(table), "14.888"));
  for (const char* said :
       {"whole: an update of 20.00 ms computes for 11.00 ms, 1.42 x a rank's share of 15.50 ms "
        "without shards; 58.3 % of 12.00 ms of sending exposed; idle 2.00 ms; the host launches "
        "for 5.00 ms.",
        "whole: 50.62 % of the state a rank; 0.950 x the time of the step without shards."})
    EXPECT_TRUE(some_line_has(table.notes, {said})) << said;
  ASSERT_EQ(report.pictures.size(), 1u);
  EXPECT_EQ(report.pictures[0].name, "xl_2x4x128_fp32_update");
  const auto& chart = std::get<measure::LaneChart>(report.pictures[0].picture);
  ASSERT_EQ(chart.groups.size(), 2u);
  EXPECT_EQ(chart.groups[0].title, "none: 16.00 ms");
  EXPECT_EQ(chart.groups[1].title, "whole: 20.00 ms; 58.3 % of 12.00 ms of sending exposed");
  EXPECT_EQ(chart.groups[1].lanes.size(), 2u);
}

TEST(BenchSharding, NamesSayWhatTravelsHow) {
  EXPECT_EQ(sharding_by_name("flat").shard_optimizer, "flat");
  EXPECT_EQ(sharding_by_name("flat").peer_copies, "all");
  EXPECT_EQ(sharding_by_name("whole nccl").shard_optimizer, "whole");
  EXPECT_EQ(sharding_by_name("whole nccl").peer_copies, "none");
  EXPECT_EQ(sharding_by_name("flat scattered").flat_buckets, "yes");
  EXPECT_EQ(sharding_by_name("flat nccl").flat_buckets, "chosen");
}

}  // namespace
}  // namespace flashstep::tools
