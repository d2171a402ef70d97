#include "flashstep/bench/allreduce.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/bare_collectives.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/bench/turns.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::tools {
namespace {

TEST(AllreduceCases, PresetsHoldEachYearsLists) {
  const auto old = jobs_of(allreduce_preset("2024"));
  EXPECT_EQ(old.size(), 3u * 3);
  EXPECT_EQ(old.front().size(), 7u);
  EXPECT_EQ(old.front().front(), (AllreduceCase{"gloo", "cpu", "fp32", 2, 512'000}));
  const auto middle = jobs_of(allreduce_preset("2025"));
  EXPECT_EQ(middle.size(), 2u * 3);
  const auto recent = jobs_of(allreduce_preset("2026"));
  EXPECT_EQ(recent.size(), 3u);
  EXPECT_EQ(recent.back().size(), 4u);
  EXPECT_EQ(recent.back().back(), (AllreduceCase{"nccl", "cuda", "fp32", 6, 1'000'000'000}));
}

TEST(AllreduceCases, MistakesAreSentences) {
  EXPECT_EQ(transports_of({}, {"cuda"}).size(), 2u);
  const std::vector<Transport> gloo = {{"gloo", "cpu"}};
  EXPECT_EQ(jobs_of({gloo, {1}, {2}, "fp32"}).size(), 1u);
  const AllreducePlan wrong[] = {{gloo, {8e-6}, {4}, "fp32"},  // two elements for four ranks
                                 {gloo, {1}, {40}, "bf16"}};   // 820 is no exact sum in bf16
  for (const AllreducePlan& plan : wrong) EXPECT_THROW(jobs_of(plan), UserError);
}

TEST(AllreducePattern, EverySumIsExactAndEveryErrorFound) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const int64_t ranks : {2, 3, 6, 12}) {
      const int64_t elements = ranks == 2 ? (int64_t{1} << 22) + 1000 : 1003;
      at::Tensor sum = at::zeros({elements}, scalar_type(dtype));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        at::Tensor part = at::full({elements}, NAN, scalar_type(dtype));
        fill_pattern(part, dtype, ranks, rank);
        sum += part;
      }
      EXPECT_EQ(count_wrong(sum, dtype, ranks), 0) << dtype << " " << ranks;
      sum[elements - 1] = NAN;
      sum[0] += 1;
      sum[500] = 0;
      EXPECT_EQ(count_wrong(sum, dtype, ranks), 3) << dtype << " " << ranks;
      // A block that came from elsewhere.
      EXPECT_GT(count_wrong(at::roll(sum, 256), dtype, ranks), elements / 3);
    }
  }
}

TEST(BareGloo, AddsUp) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      for (const int64_t elements : {1, 2, 3, 1000, 1'000'003}) {
        at::Tensor tensor = at::empty({elements}, scalar_type(dtype));
        const auto bare = make_bare_gloo(group, tensor);
        for (int call = 0; call < 2; ++call) {
          fill_pattern(tensor, dtype, 3, group.rank());
          bare();
          EXPECT_EQ(count_wrong(tensor, dtype, 3), 0) << dtype << " " << elements;
        }
        EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 3);  // the group goes on as before
      }
    }
  });
}

TEST(MeasureAllreduce, EveryRankTakesPart) {
  testing::run_ranks(3, [](const Environment& environment) {
    AllreduceTask task;
    task.cases = {{"gloo", "cpu", "fp32", 3, 4'000}, {"gloo", "cpu", "fp16", 3, 1'000'002}};
    task.cell_seconds = 0.02;
    std::vector<Record> records;
    measure_allreduce(read_task<AllreduceTask>(write_task(task)), [&](const Record& record) {
      records.push_back(record_from_json(to_json(record)));
    });
    ASSERT_EQ(records.size(), 4u);
    for (size_t i = 0; i < records.size(); ++i) {
      const Record& record = records[i];
      EXPECT_EQ(record.key, key_of(task.cases[i / 2]));
      EXPECT_EQ(record.implementation, i % 2 == 0 ? "flashstep" : "bare");
      EXPECT_EQ(record.number("wrong"), 0);
      EXPECT_GE(record.series("seconds").size(), 3u);
      for (const double seconds : record.series("seconds")) EXPECT_GT(seconds, 0);
      EXPECT_EQ(record.series("alone").size(), record.series("seconds").size());
    }
    task.cases[0].ranks = environment.world_size - 1;
    EXPECT_THROW(measure_allreduce(task, [](const Record&) {}), UserError);
  });
}

// --- the report ------------------------------------------------------------------------------

Record sum_of(const AllreduceCase& c, const char* implementation, double us) {
  Record record{.key = key_of(c), .what = describe(c), .implementation = implementation};
  record.ours = record.implementation == "flashstep";
  record.samples["seconds"] = std::vector<double>(5, us * 1e-6);
  record.samples["alone"] = std::vector<double>(5, (us + 9) * 1e-6);
  record.facts["wrong"] = 0;
  return record;
}

TEST(AllreduceReport, TableHasALineACaseAndReasons) {
  const Links links = links_of({{"nccl", "cuda"}}, "NVIDIA H200");
  const AllreduceCase c{"nccl", "cuda", "fp32", 4, 1'000'000'000};
  Record large{.key = key_of({"nccl", "cuda", "fp32", 6, 1'000'000}),
               .implementation = "flashstep"};
  large.outcome = {Status::kRefused, "needs 6 GPUs"};
  const Records records({sum_of(c, "flashstep", 5000), sum_of(c, "bare", 4900), large});
  const BenchReport report = report_of(allreduce_benchmark({}, links), records);
  const measure::Table& table = report.table;
  ASSERT_EQ(table.rows.size(), 2u);
  expect_row(table, 0,
             {{"algorithm", "200.00"},  // 1 GB in 5 ms
              {"bus", "300.00"},        // times 2 (4 - 1) / 4
              {"of link", "66.7"},      // of 450 GB/s
              {"x bare", "0.980"},
              {"above bare", "100.0"}});
  expect_row(table, 1, {{"time", "needs 6 GPUs"}});
  EXPECT_EQ(report.runs.rows.size(), 2u);
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(table.notes.back(), "Verdict: 1 of 2 cases measured, 0 failed, 0 wrong elements.");
  ASSERT_EQ(report.pictures.size(), 2u);
  const auto& bus = std::get<measure::Plot>(report.pictures[0].picture);
  EXPECT_EQ(bus.series.size(), 2u);
  EXPECT_TRUE(bus.series[1].dashed);
  EXPECT_FALSE(measure::to_svg(bus).empty());
  EXPECT_TRUE(report_of(allreduce_benchmark({}, links), Records({large})).pictures.empty());
}

TEST(AllreduceLinks, AreKnownOrMeasured) {
  const Transport nccl = {"nccl", "cuda"}, gloo = {"gloo", "cpu"};
  EXPECT_EQ(links_of({nccl}, "NVIDIA H200").at(nccl).bytes_per_s, 450e9);
  EXPECT_EQ(links_of({nccl}, "NVIDIA H100 PCIe").at(nccl).bytes_per_s, 300e9);
  for (const char* without : {"NVIDIA GeForce RTX 4090", ""})
    EXPECT_TRUE(links_of({nccl}, without).empty()) << without;
  const double rate = links_of({gloo}, "").at(gloo).bytes_per_s;
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e12);
}

// Without a GPU, cases of NCCL are cells that say so, and nothing is started.
// A cell beside what can be measured; where nothing can, the caller's mistake.
TEST(BenchAllreduce, SaysWhatIsMissing) {
  BenchAllreduceOptions options;
  options.plan = {{{"nccl", "cuda"}}, {1}, {500}, "fp32"};
  options.program = "/bin/false";
  try {
    bench_allreduce(options);
    ADD_FAILURE() << "expected a UserError";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("[bench allreduce] nccl cuda 500 ranks")) << text;
    EXPECT_TRUE(contains(text, "needs a GPU") || contains(text, "needs 500 GPUs")) << text;
  }
  options.plan = {{{"nccl", "cuda"}, {"gloo", "cpu"}}, {1}, {1}, "fp32"};
  if (!measure::list_gpus().empty()) return;
  const BenchReport report = bench_allreduce(options);
  const std::string text = measure::to_text(report.table);
  EXPECT_TRUE(contains(text, "needs a GPU")) << text;
  EXPECT_TRUE(contains(text, "Verdict: 0 of 2 cases measured, 1 failed")) << text;
}

}  // namespace
}  // namespace flashstep::tools
