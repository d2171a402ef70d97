#include "flashstep/bench/step.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/bench/test_workload.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"

namespace flashstep::tools {
namespace {

BenchStepOptions small_step_options() {
  BenchStepOptions options;
  options.axes.sizes = {"32/64/2/2"};
  options.axes.contexts = {16};
  options.axes.common.model.vocab_size = 64;
  options.axes.common.batch_size = 2;
  options.warmups = {1};
  options.task.steps = 2;
  options.own_process = false;
  const char* program = std::getenv("FLASHSTEP_PROGRAM");
  options.program = program ? program : "flashstep";
  return options;
}

BenchStepOptions options_with_peer(const std::string& shell_script) {
  BenchStepOptions options = small_step_options();
  options.task.peers = {"eager"};
  options.task.peer_command = {"sh", "-c", shell_script};
  return options;
}

StepTask small_task() { return {.workload = resolved_workload(small_workload()), .warmup = 1}; }

// Ours, whose steps take these milliseconds, the first of them for warming up.
std::vector<Record> records_of_steps(const std::vector<double>& milliseconds) {
  const StepTask task = small_task();
  std::vector<Record> records = blanks_of(task);
  for (const double ms : milliseconds)
    add_step(records[0], 0, !records[0].has("warm-up total"),
             {ms * 2e-4, ms * 5e-4, ms * 3e-4, ms * 1e-3});
  records[0].facts["peak_bytes"] = 3.0 * (1 << 30);
  describe_records(task, 0, records);
  return records;
}

BenchReport report_on(std::vector<Record> records) {
  return report_of(step_benchmark(small_step_options()), Records(std::move(records)));
}

TEST(BenchStep, SizesThatCpusAreComparedOn) {
  WorkloadAxes axes;
  EXPECT_EQ(workloads_of(axes).size(), 1u);
  axes.sizes = {"tiny", "mini", "base"};
  axes.contexts = {0};
  axes.precisions = {"fp32", "bf16"};
  std::vector<std::string> millions;
  for (const Workload& w : workloads_of(axes))
    millions.push_back(fixed(static_cast<double>(parameter_count(w.model)) / 1e6, 2));
  EXPECT_EQ(millions, (std::vector<std::string>{"1.90", "1.90", "5.31", "5.31", "23.17", "23.17"}));
}

TEST(BenchStep, MeasuresEveryModeAndPrecision) {
  BenchStepOptions options = small_step_options();
  options.axes.precisions = {"fp32", "bf16"};
  options.axes.modes = workload_modes();
  const BenchReport report = bench_step(options);
  ASSERT_EQ(report.table.rows.size(), 6u);
  for (size_t row = 0; row < 6; ++row) {
    EXPECT_GT(number_at(report.table, row, "mean"), 0);
    EXPECT_GE(number_at(report.table, row, "deviation"), 0);
    EXPECT_GT(number_at(report.table, row, "tokens"), 0);
    EXPECT_GT(number_at(report.table, row, "of limit"), 0);
    EXPECT_EQ(text_at(report.table, row, "backward") == "-", row % 3 == 0);
    EXPECT_EQ(text_at(report.table, row, "optimizer") == "-", row % 3 != 2);
  }
  EXPECT_EQ(report.runs.rows.size(), 6u * 3);  // one for warming up, two timed
  expect_row(report.runs, 0, {{"turn", "1"}, {"step", "1"}, {"kind", "warm-up"}});
  expect_row(report.runs, 1, {{"turn", "1"}, {"step", "2"}, {"kind", "timed"}});
  ASSERT_EQ(report.pictures.size(), 2u);  // the parts of a step in both precisions
  EXPECT_EQ(report.pictures[0].name, "parts_b2_n16_fp32_auto");
  EXPECT_EQ(report.failure, "");
}

TEST(BenchStep, StatisticsAreOfTheTimedSteps) {
  expect_row(report_on(records_of_steps({100, 1, 2, 3, 4, 5})).table, 0,
             {{"mean", "3.000"},
              {"deviation", "1.581"},
              {"median", "3.000"},
              {"p10", "1.400"},
              {"p90", "4.600"},
              {"backward", "1.500"},
              {"tokens", "10,667"},
              {"peak memory", "3.00"}});
  expect_row(report_on(records_of_steps({100, 1})).table, 0, {{"deviation", "-"}});  // of one step
}

TEST(BenchStep, OutOfMemoryIsACellAndWhatFitsIsMarked) {
  std::vector<Record> whole = records_of_steps({}), part = records_of_steps({100, 1, 2});
  whole[0].outcome = outcome_from("OOM: too much");
  StepTask fewer = small_task();
  fewer.workload.model.num_layers = 1;
  describe_records(fewer, 2, part);
  const measure::Table table = report_on({whole[0], part[0]}).table;
  expect_row(table, 0, {{"mean", "OOM"}, {"median", "-"}, {"work", "-"}});
  expect_row(table, 1, {{"model", "32/64/2/2, 1 of 2 layers *"}});
  EXPECT_TRUE(some_line_has(table.notes, {"OOM: too much"}));
  EXPECT_TRUE(some_line_has(table.notes, {"*: the size does not fit"}));
}

TEST(BenchStep, SeveralWarmupsShowEveryStep) {
  BenchStepOptions options = small_step_options();
  options.warmups = {0, 2};
  const BenchReport report = bench_step(options);
  ASSERT_EQ(report.table.rows.size(), 2u);
  EXPECT_EQ(cell_at(report.table, 1, "warm-up"), measure::Cell(2));
  EXPECT_EQ(report.runs.rows.size(), 2u + 4);
  ASSERT_EQ(report.pictures.size(), 2u);
  EXPECT_EQ(report.pictures[1].name, "warmup_32-64-2-2_n16_fp32_auto_step");
  const auto& plot = std::get<measure::Plot>(report.pictures[1].picture);
  ASSERT_EQ(plot.series.size(), 2u);
  EXPECT_EQ(plot.series[1].x, (std::vector<double>{1, 2, 3, 4}));
}

TEST(BenchStep, ReplayedStepsStandBesideLaunchedOnes) {
  StepTask task = small_task();
  task.graph = true;
  task.peers = {"eager"};
  std::vector<Record> both = blanks_of(task);
  add_step(both[0], 0, true, {.total = 9});
  add_step(both[0], 0, false, {.total = 0.2});
  add_step(both[1], 0, true, {.total = 9});
  add_step(both[1], 0, false, {.total = 0.1});
  both[1].facts["peak_bytes"] = 1 << 30;
  add_step(both[2], 0, false, {.total = 0.3});
  both[2].facts["peak_bytes"] = 1 << 29;
  describe_records(task, 0, both);
  both.push_back(records_of_steps({200, 200})[0]);
  both.back().key[1].second = 7;  // another case
  const BenchReport report = report_on(both);
  const measure::Table& table = report.table;
  ASSERT_EQ(table.rows.size(), 2u);
  expect_row(table, 0,
             {{"graph median", "100.0"},
              {"graph x launched", "2.00"},
              {"graph x eager", "3.00"},
              {"graph peak memory", "1.00"},
              {"eager peak memory", "0.50"}});
  expect_row(table, 1, {{"graph median", "-"}});
  EXPECT_TRUE(some_line_has(table.notes, {"flashstep graph has 3.00 times the speed of eager"}));
  EXPECT_EQ(report.runs.rows.size(), 2u + 2 + 1 + 2);
}

TEST(BenchStep, SetsAPeerBeside) {
  // A peer that always says half a second: 32 tokens a step are 64 tokens/s.
  BenchStepOptions options =
      options_with_peer("echo ready; while read line; do echo '{\"seconds\": [0.5, 0.5]}'; done");
  options.task.turns = 2;
  const BenchReport report = bench_step(options);
  EXPECT_EQ(number_at(report.table, 0, "eager"), 64.0);
  EXPECT_LE(number_at(report.table, 0, "gradient error"), 1e-4);
  EXPECT_TRUE(some_line_has(report.table.notes, {"times the speed of eager"}));
  // Two turns of two timed steps; ours begins them with one that is not timed.
  EXPECT_EQ(report.runs.rows.size(), 2u * 3 + 2 * 2);
}

TEST(BenchStep, OnePeerServesAllCasesAndGivesItsMemoryBack) {
  const TemporaryFolder folder;
  const std::filesystem::path log = folder / "log";
  BenchStepOptions options = options_with_peer(
      str("log='", log.string(), "'; echo started >>$log; echo ready; while read line; do ",
          "case $line in *release*) echo released >>$log; echo '{}' ;; ",
          "*) echo asked >>$log; echo '{\"seconds\": [0.5]}' ;; esac; done"));
  options.axes.contexts = {8, 16};
  const BenchReport report = bench_step(options);
  EXPECT_EQ(read_file(log), "started\nasked\nreleased\nasked\nreleased\n");
  EXPECT_EQ(number_at(report.table, 1, "eager"), 64.0);
}

TEST(BenchStep, LeavesTheCellsOfAPeerEmptyThatDoesNotRun) {
  for (const char* command : {"exit 1", "echo ready; read line; exit 1",
                              "echo ready; read line; echo '{\"error\": \"out of memory\"}'"}) {
    const BenchReport report = bench_step(options_with_peer(command));
    expect_row(report.table, 0, {{"eager", contains(command, "memory") ? "OOM" : "-"}});
    EXPECT_GT(number_at(report.table, 0, "mean"), 0);
    EXPECT_TRUE(some_line_has(report.table.notes, {", eager: "})) << command;
  }
  BenchStepOptions options = options_with_peer("");
  options.task.peer_command = {"/no/such/program"};
  EXPECT_TRUE(some_line_has(bench_step(options).table.notes, {", eager: "}));
}

TEST(BenchStep, OursIsShownWhereAPeerIsInterrupted) {
  for (const bool own_process : {false, true}) {
    const SignalGuard guard;
    const char* us = own_process ? "$(awk '{print $4}' /proc/$PPID/stat)" : "$PPID";
    BenchStepOptions options =
        options_with_peer(str("echo ready; read line; kill -INT ", us, "; exec sleep 5"));
    options.own_process = own_process;
    const BenchReport report = bench_step(options);
    EXPECT_EQ(report.signal, SIGINT);
    ASSERT_EQ(report.table.rows.size(), 1u);
    EXPECT_GT(number_at(report.table, 0, "mean"), 0);
    expect_row(report.table, 0, {{"eager", "-"}});
    EXPECT_TRUE(some_line_has(report.table.notes, {"Interrupted"}));
  }
}

TEST(BenchStep, AWrongGradientIsToldAndSoIsNoNumber) {
  StepTask task = small_task();
  std::vector<Record> records = records_of_steps({100, 1});
  EXPECT_EQ(report_on(records).failure, "");  // nothing was compared
  for (const double error : {1e-5, 1e-3, std::numeric_limits<double>::quiet_NaN()}) {
    records[0].facts["gradient error"] = error;
    describe_records(task, 0, records);
    EXPECT_EQ(report_on(records).failure.empty(), error == 1e-5) << error;
  }
  EXPECT_LE(gradient_error(task.workload), gradient_tolerance("fp32"));
  task.workload.precision = "bf16";
  const double rounded = gradient_error(task.workload);
  EXPECT_GT(rounded, gradient_tolerance("fp32"));
  EXPECT_LE(rounded, gradient_tolerance("bf16"));
}

TEST(BenchStep, MeasuresInProcessesOfTheirOwn) {
  BenchStepOptions options = small_step_options();
  options.own_process = true;
  options.warmups = {0, 1};
  const BenchReport report = bench_step(options);
  ASSERT_EQ(report.table.rows.size(), 2u);
  EXPECT_GT(number_at(report.table, 1, "mean"), 0);
  EXPECT_EQ(report.runs.rows.size(), 2u + 3);
  // What the caller asked for cannot be done by anybody: his mistake.
  options.axes.attentions = {"tiled", "cpu"};
  options.axes.sizes = {"264/16/1/1"};  // a head of 264, and 256 is the most
  const BenchReport one = bench_step(options);
  EXPECT_EQ(cell_at(one.table, 2, "mean"), measure::Cell("failed"));
  options.axes.attentions = {"cpu"};
  EXPECT_THROW(bench_step(options), UserError);
}

TEST(BenchStep, MistakesAreSentences) {
  const auto refused = refused_by(bench_step, small_step_options());
  refused([](auto& o) { o.task.graph = true; });       // on a CPU
  refused([](auto& o) { o.task.peers = {"eager"}; });  // without a command
}

}  // namespace
}  // namespace flashstep::tools
