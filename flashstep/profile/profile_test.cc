#include "flashstep/profile/profile.h"

#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/bench/test_table.h"
#include "flashstep/bench/test_workload.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/profile/profile_sums.h"
#include "flashstep/profile/test_recorded.h"
#include "flashstep/trace/test_gpu_like_trace.h"
#include "flashstep/trace/trace_events.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

Workload workload_with(const std::string& attention) {
  Workload workload = small_workload();
  workload.model.attention = attention;
  return resolved_workload(workload);
}

double flops_of(const ProfileSums& sums, Pass pass) {
  return add_up(sums, {.passes = {pass}}).flops / static_cast<double>(sums.steps);
}

// The formulas of model/cost.h against the shapes that the profiler saw.
TEST(Profile, FlopsOfOperatorsAreThoseOfTheFormulas) {
  for (const bool formula : {true, false}) {
    const Workload workload = workload_with(formula ? "naive" : "auto");
    const ProfileSums sums = sums_of(recorded(workload, 2));
    EXPECT_EQ(sums.steps, 2);
    // The formula computes hidden pairs too.
    const ForwardFlops one =
        forward_flops(workload.model, workload.model.context_length, /*causal=*/!formula);
    // The head's gradients are made while its logits are there.
    const double forward = 2 * (one.total() + 2 * one.head);
    EXPECT_DOUBLE_EQ(flops_of(sums, Pass::kForward), forward) << workload.model.attention;
    // A kernel computes q k^T once more in the backward pass.
    const double backward = 2 * (2 * one.linear + (formula ? 2 : 2.5) * one.attention);
    EXPECT_DOUBLE_EQ(flops_of(sums, Pass::kBackward), backward) << workload.model.attention;
  }
}

TEST(Profile, EveryMomentOfAStepBelongsToOnePassAndRange) {
  const ProfileSums sums = sums_of(recorded(workload_with("naive"), 3));
  EXPECT_FALSE(sums.on_gpu);
  EXPECT_NEAR(add_up(sums, {}).seconds, sums.wall_seconds, 0.01 * sums.wall_seconds);
  std::set<std::string> ranges;
  for (const RangeSums& row : by_range(sums)) {
    const std::string path = join(sums.ranges.path(row.range), "/");
    ranges.insert(path);
    EXPECT_GT(row.passes[0].seconds, 0) << path;
    if (path != "head" && path != "loss") {  // their gradients are made in forward
      EXPECT_GT(row.passes[1].seconds, 0) << path << " has a backward pass";
    }
  }
  for (const char* path :
       {"embedding", "layers.*/norm", "layers.*/self-attention/rope",
        "layers.*/self-attention/attention/scores", "layers.*/self-attention/attention/softmax",
        "layers.*/self-attention/attention/values", "layers.*/feed-forward/swiglu", "norm", "head",
        "loss"})
    EXPECT_TRUE(ranges.contains(path))
        << path << " is not among " << join({ranges.begin(), ranges.end()});
  EXPECT_EQ(sums.block_seconds.size(), 2u);
  EXPECT_GT(add_up(sums, {.passes = {Pass::kOptimizer}}).seconds, 0);
  EXPECT_LT(unclassified_share(sums), 0.02) << join(unclassified_names(sums));
}

// What LibTorch's profiler hands over in the process, and the file it writes, say the same.
TEST(Profile, TheChromeTraceSaysTheSame) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "profile_test_trace.json";
  const ProfileSums here = sums_of(recorded(workload_with("naive"), 2, file.string()));
  const ProfileSums there = sums_of(read_chrome_trace(file));
  EXPECT_EQ(here.steps, there.steps);
  for_each_pass_and_class([&](const CellFilter& filter) {
    const WorkSums a = add_up(here, filter), b = add_up(there, filter);
    EXPECT_EQ(a.calls, b.calls);
    EXPECT_EQ(a.flops, b.flops);
    EXPECT_NEAR(a.seconds, b.seconds, 1e-6 * static_cast<double>(a.calls + 1));
  });
  EXPECT_EQ(by_range(here).size(), by_range(there).size());
  std::filesystem::remove(file);
}

TEST(Profile, NobodyListensUnlessAsked) {
  ModelRun run(workload_with("auto"));
  const TraceEvents trace = record(run.device(), [&] { run.pass(); });
  EXPECT_FALSE(trace.events.empty());
  for (const TraceEvent& event : trace.events) EXPECT_NE(event.kind, EventKind::kRange);
}

const measure::Table& table_named(const BenchReport& report, const std::string& name) {
  for (const NamedTable& named : report.tables) {
    if (named.name == name) return named.table;
  }
  throw std::runtime_error("no table " + name);
}

std::vector<std::string> texts(const measure::Table& table, const std::string& column) {
  std::vector<std::string> values;
  for (size_t i = 0; i < table.rows.size(); ++i) values.push_back(text_at(table, i, column));
  return values;
}

ProfileOptions small_profile_options() {
  ProfileOptions options;
  options.axes.sizes = {"32/64/2/2"};
  options.axes.contexts = {16};
  options.axes.common.batch_size = 2;
  options.axes.common.model.vocab_size = 64;
  options.axes.attentions = {"naive"};
  options.warmup = 1;
  options.steps = 2;
  return options;
}

TEST(Profile, ReportsEveryTableAndPicture) {
  const BenchReport report = profile_report(small_profile_options());
  EXPECT_EQ(texts(report.table, "pass"),
            (std::vector<std::string>{"inference, forward", "inference, in all", "forward",
                                      "backward", "optimizer", "in all"}));
  for (const char* name : {"kernels", "classes", "shares", "ranges", "attention", "blocks"})
    EXPECT_FALSE(table_named(report, name).rows.empty()) << name;
  EXPECT_EQ(texts(table_named(report, "attention"), "part"),
            (std::vector<std::string>{"matrix products", "softmax", "scale and mask",
                                      "matrix products", "softmax", "scale and mask"}));
  // 5 B H N N in each of 2 layers, in GFLOP.
  EXPECT_EQ(texts(table_named(report, "attention"), "work")[1],
            fixed(5e-9 * 2 * 2 * 16 * 16 * 2, 3));
  EXPECT_EQ(texts(table_named(report, "blocks"), "block"), (std::vector<std::string>{"0", "1"}));
  ASSERT_EQ(report.pictures.size(), 3u);
  EXPECT_EQ(report.pictures[0].name, "flame_32_64_2_2_context_16_fp32_naive");
  const auto* flames = std::get_if<measure::FlameGraph>(&report.pictures[0].picture);
  ASSERT_NE(flames, nullptr);
  const std::string svg = measure::to_svg(*flames);
  for (const char* frame : {"forward", "backward", "optimizer", "layers.*"})
    EXPECT_NE(svg.find(frame), std::string::npos) << frame;
}

// Lists of tensors come without shapes: the update's traffic is the formula's.
TEST(Profile, KnowsWhatTheUpdateMoves) {
  const BenchReport report = profile_report(small_profile_options());
  const measure::Table& classes = table_named(report, "classes");
  const double least =
      update_traffic_bytes(static_cast<double>(parameter_count(workload_with("naive").model)));
  const auto works = texts(classes, "work"), names = texts(classes, "class");
  const auto traffic = texts(classes, "traffic");
  for (size_t i = 0; i < names.size(); ++i) {
    if (works[i] != "step" || names[i] != "element-wise") continue;
    EXPECT_GE(std::stod(traffic[i]) + 5e-4, least / 1e9);
  }
}

TEST(Profile, WhatDoesNotFitIsACellAndWhatCannotBeIsAMistake) {
  ProfileOptions options = small_profile_options();
  options.axes.sizes = {"65536/262144/1000/64", "32/64/2/2"};
  const BenchReport report = profile_report(options);
  EXPECT_EQ(texts(report.table, "pass").front(), "OOM");
  EXPECT_EQ(texts(report.table, "pass").size(), 7u) << "the rest is measured";
  options.axes.sizes = {"nobody"};
  EXPECT_THROW(profile_report(options), UserError);
}

TEST(Profile, ReadsATraceOfSomebodyElse) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "gpu_like.json";
  write_file(file, gpu_like_trace());
  const BenchReport report = trace_report(file, 3);
  EXPECT_EQ(texts(report.table, "pass"),
            (std::vector<std::string>{"forward", "backward", "optimizer", "in all"}));
  EXPECT_EQ(texts(report.table, "kernels"),
            (std::vector<std::string>{"0.015", "0.027", "0.020", "0.062"}));
  for (const measure::Column& column : report.table.columns)
    EXPECT_NE(column.name, "timer") << "a trace has none";
  const measure::Table& kernels = table_named(report, "kernels");
  EXPECT_EQ(texts(kernels, "kernel").front(), "nvjet_tst_64x64");
  EXPECT_EQ(kernels.rows.size(), 3u);
  EXPECT_EQ(texts(table_named(report, "classes"), "class").back(), "idle");
  EXPECT_THROW(trace_report("/no/such/file", 3), UserError);
  std::filesystem::remove(file);
}

// The recorded step of 100 us has kernels in 57 of them.
TEST(Profile, AGpuIsIdleForAsLongAsTheClockSays) {
  ProfileRun run{.sums = sums_of(parse_chrome_trace(gpu_like_trace(), "x"))};
  EXPECT_NEAR(run.wall_seconds(), 100e-6, 1e-9);
  EXPECT_NEAR(run.idle_seconds(), 43e-6, 1e-9) << "no clock: as recorded";
  run.timers.samples["total"] = {70e-6, 80e-6, 90e-6};
  EXPECT_NEAR(run.wall_seconds(), 80e-6, 1e-9);
  EXPECT_NEAR(run.idle_seconds(), 23e-6, 1e-9);
  run.timers.samples["total"] = {50e-6};
  EXPECT_NEAR(run.wall_seconds(), 57e-6, 1e-9) << "never less than what ran";
  EXPECT_EQ(run.idle_seconds(), 0);
}

// Neither the step that begins a recording nor the number of steps shows.
TEST(Profile, ShowsOneStepHoweverManyAreRecorded) {
  ProfileOptions options = small_profile_options();
  const auto ranges_note = [](const BenchReport& report) {
    for (const std::string& note : report.table.notes) {
      const size_t at = note.find(" ranges in a step");
      if (at != note.npos) return note.substr(0, at);
    }
    return std::string("no note of ranges");
  };
  options.recorded = 1;
  const BenchReport one = profile_report(options);
  options.recorded = 3;
  const BenchReport three = profile_report(options);
  EXPECT_EQ(texts(one.table, "calls"), texts(three.table, "calls"));
  EXPECT_EQ(ranges_note(one), ranges_note(three));
}

TEST(Profile, FileNamesAreHarmless) {
  EXPECT_EQ(file_name("1600/6400/48/25, context 128, bf16, naive"),
            "1600_6400_48_25_context_128_bf16_naive");
}

constexpr double kMicro = 1e-6;

ProfileSums known_sums() { return sums_of(parse_chrome_trace(gpu_like_trace(), "x")); }

TEST(ProfileSums, AddsUpByPassClassAndRange) {
  const ProfileSums sums = known_sums();
  EXPECT_TRUE(sums.on_gpu);
  EXPECT_EQ(sums.steps, 1);
  const auto micros = [&](const CellFilter& filter) {
    return add_up(sums, filter).seconds / kMicro;
  };
  EXPECT_NEAR(micros({}), 62, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kForward}}), 15, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kBackward}}), 27, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kOptimizer}}), 20, 1e-9);
  EXPECT_NEAR(micros({.classes = {WorkClass::kMatmul}}), 30, 1e-9);
  EXPECT_NEAR(micros({.classes = {WorkClass::kMatmul}, .range = "attention"}), 30, 1e-9);
  EXPECT_NEAR(micros({.range = "layers.*"}), 42, 1e-9);
  EXPECT_NEAR(micros({.range = "no such"}), 0, 1e-9);
  EXPECT_EQ(add_up(sums, {.classes = {WorkClass::kMatmul}}).flops, 2 * (4 * 8 * 16 + 8 * 4 * 16));
  EXPECT_EQ(add_up(sums, {.classes = {WorkClass::kMatmul}}).calls, 2);
  ASSERT_EQ(sums.block_seconds.size(), 2u);
  EXPECT_NEAR(sums.block_seconds[0][1] / kMicro, 22, 1e-9) << "backward of layers.0";
  EXPECT_NEAR(sums.block_seconds[1][0] / kMicro, 5, 1e-9) << "forward of layers.1";
}

TEST(ProfileSums, TellsBusyFromIdle) {
  const ProfileSums sums = known_sums();
  EXPECT_NEAR(sums.wall_seconds / kMicro, 100, 1e-9);
  // 30-40, 42-47, 50-55, 56-78, 80-95: the copy runs beside the update.
  EXPECT_NEAR(sums.busy_seconds / kMicro, 57, 1e-3);
  EXPECT_NEAR(sums.passes[0].host_seconds / kMicro, 30, 1e-9);
  EXPECT_NEAR(sums.passes[2].busy_seconds / kMicro, 15, 1e-3);
}

TEST(ProfileSums, SortsNamesByTheirTime) {
  const auto names = by_name(known_sums());
  ASSERT_EQ(names.size(), 6u);
  EXPECT_EQ(names[0].name, "nvjet_tst_64x64");
  EXPECT_EQ(names[0].passes[0].calls, 1);
  EXPECT_EQ(names[0].total.calls, 2);
  EXPECT_EQ(names.back().work_class, WorkClass::kReduction);
}

TEST(ProfileSums, RangesHoldWhatLiesInThem) {
  const ProfileSums sums = known_sums();
  std::vector<std::string> paths;
  for (const RangeSums& row : by_range(sums))
    paths.push_back(join(sums.ranges.path(row.range), "/"));
  EXPECT_EQ(paths, (std::vector<std::string>{"layers.*", "layers.*/norm", "layers.*/attention"}));
  const RangeSums blocks = by_range(sums).front();
  EXPECT_NEAR(blocks.passes[0].seconds / kMicro, 15, 1e-9);
  EXPECT_NEAR(blocks.passes[1].seconds / kMicro, 27, 1e-9);
  EXPECT_EQ(blocks.passes[0].flops, 2 * 4 * 8 * 16);
}

TEST(ProfileSums, SaysWhatNoRuleKnows) {
  EXPECT_EQ(unclassified_share(known_sums()), 0);
  const ProfileSums sums = sums_of(parse_chrome_trace(TraceText()
                                                          .device("kernel", "mystery", 0, 1, 0, 1)
                                                          .device("kernel", "nvjet", 2, 3, 0, 2)
                                                          .text(),
                                                      "x"));
  EXPECT_DOUBLE_EQ(unclassified_share(sums), 0.25);
  EXPECT_EQ(unclassified_names(sums), std::vector<std::string>{"mystery"});
  EXPECT_NEAR(sums.wall_seconds / kMicro, 5, 1e-9) << "without ranges: first to last";
}

}  // namespace

}  // namespace flashstep::tools
