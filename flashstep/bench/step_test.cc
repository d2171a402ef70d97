#include "flashstep/bench/step.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

BenchStepOptions small_step_options() {
  BenchStepOptions options;
  options.axes.sizes = {"32/64/2/2"};
  options.axes.contexts = {16};
  options.axes.common.model.vocab_size = 64;
  options.axes.common.batch_size = 2;
  options.warmups = {1};
  options.steps = 2;
  options.own_process = false;
  const char* program = std::getenv("FLASHSTEP_PROGRAM");
  options.program = program ? program : "flashstep";
  return options;
}

StepTask small_task(const std::string& mode = "step") {
  StepTask task;
  task.workload = workloads_of(small_step_options().axes).front();
  task.workload.mode = mode;
  task.warmup = 1;
  return task;
}

// Ours, whose steps take these milliseconds, the first of them for warming up; and the peers.
std::vector<Record> records_of_steps(const std::vector<double>& milliseconds,
                                     const std::vector<std::string>& peers = {}) {
  StepTask task = small_task();
  task.peers = peers;
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

TEST(BenchStep, PresetsHaveTheHandoutsLists) {
  const BenchStepOptions y2024 = step_preset("2024"), y2025 = step_preset("2025");
  EXPECT_EQ(y2024.axes.common.batch_size, 16);
  EXPECT_EQ(y2024.warmups, std::vector<int64_t>{1});
  EXPECT_EQ(y2024.steps, 5);
  EXPECT_EQ(y2025.axes.contexts, (std::vector<int64_t>{128, 256, 512, 1024}));
  EXPECT_EQ(y2025.warmups, std::vector<int64_t>{5});
  EXPECT_EQ(y2025.steps, 10);
  EXPECT_EQ(workloads_of(y2025.axes).size(), 5u * 4 * 2 * 2);
  EXPECT_EQ(step_preset("2026").axes.sizes.back(), "10B");
  EXPECT_EQ(workloads_of(step_preset("").axes).size(), 1u);
  std::vector<std::string> millions;
  for (const Workload& w : workloads_of(step_preset("peers").axes))
    millions.push_back(fixed(static_cast<double>(parameter_count(w.model)) / 1e6, 2));
  EXPECT_EQ(millions, (std::vector<std::string>{"1.90", "1.90", "5.31", "5.31", "23.17", "23.17"}));
  EXPECT_THROW(step_preset("2023"), UserError);
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
    EXPECT_EQ(cell_at(report.table, row, "backward") == measure::Cell(), row % 3 == 0);
    EXPECT_EQ(cell_at(report.table, row, "optimizer") == measure::Cell(), row % 3 != 2);
  }
  EXPECT_EQ(report.runs.rows.size(), 6u * 3);  // one for warming up, two timed
  EXPECT_EQ(cell_at(report.runs, 0, "kind"), measure::Cell("warm-up"));
  EXPECT_EQ(cell_at(report.runs, 1, "kind"), measure::Cell("timed"));
  ASSERT_EQ(report.pictures.size(), 2u);  // the parts of a step in both precisions
  EXPECT_EQ(report.pictures[0].name, "parts_b2_n16_fp32_auto");
  EXPECT_EQ(report.failure, "");
}

TEST(BenchStep, StatisticsAreOfTheTimedSteps) {
  const measure::Table table = report_on(records_of_steps({100, 1, 2, 3, 4, 5})).table;
  EXPECT_NEAR(number_at(table, 0, "mean"), 3, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "deviation"), std::sqrt(2.5), 1e-9);
  EXPECT_NEAR(number_at(table, 0, "median"), 3, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "p10"), 1.4, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "p90"), 4.6, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "backward"), 1.5, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "tokens"), 32 / 3e-3, 1e-6);
  EXPECT_NEAR(number_at(table, 0, "peak memory"), 3, 1e-9);
  const measure::Table one = report_on(records_of_steps({100, 1})).table;
  EXPECT_EQ(cell_at(one, 0, "deviation"), measure::Cell());  // of one step there is none
}

TEST(BenchStep, OutOfMemoryIsACellAndWhatFitsIsMarked) {
  std::vector<Record> whole = records_of_steps({}), part = records_of_steps({100, 1, 2});
  whole[0].outcome = outcome_from("OOM: too much");
  StepTask fewer = small_task();
  fewer.workload.model.num_layers = 1;
  describe_records(fewer, 2, part);
  const measure::Table table = report_on({whole[0], part[0]}).table;
  EXPECT_EQ(cell_at(table, 0, "mean"), measure::Cell("OOM"));
  EXPECT_EQ(cell_at(table, 0, "median"), measure::Cell());
  EXPECT_EQ(cell_at(table, 0, "work"), measure::Cell());
  EXPECT_EQ(cell_at(table, 1, "model"), measure::Cell("32/64/2/2, 1 of 2 layers *"));
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
  EXPECT_NEAR(number_at(table, 0, "graph median"), 100, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "graph x launched"), 2, 1e-9);
  EXPECT_NEAR(number_at(table, 0, "graph x eager"), 3, 1e-9);
  EXPECT_EQ(number_at(table, 0, "graph peak memory"), 1);
  EXPECT_EQ(number_at(table, 0, "eager peak memory"), 0.5);
  EXPECT_EQ(cell_at(table, 1, "graph median"), measure::Cell());
  EXPECT_EQ(report.runs.rows.size(), 2u + 2 + 1 + 2);
  BenchStepOptions options = small_step_options();
  options.graph = true;  // on a CPU
  EXPECT_THROW(bench_step(options), UserError);
}

TEST(BenchStep, SetsAPeerBeside) {
  BenchStepOptions options = small_step_options();
  options.peers = {"eager"};
  options.turns = 2;
  // A peer that always says half a second: 32 tokens a step are 64 tokens/s.
  options.peer_command = {"sh", "-c",
                          "echo ready; while read line; do echo '{\"seconds\": [0.5, 0.5]}'; done"};
  const BenchReport report = bench_step(options);
  EXPECT_EQ(number_at(report.table, 0, "eager"), 64.0);
  EXPECT_LE(number_at(report.table, 0, "gradient error"), 1e-4);
  EXPECT_TRUE(some_line_has(report.table.notes, {"times the speed of eager"}));
  // Two turns of two timed steps; ours begins them with one that is not timed.
  EXPECT_EQ(report.runs.rows.size(), 2u * 3 + 2 * 2);
}

TEST(BenchStep, OnePeerServesAllCasesAndGivesItsMemoryBack) {
  const fs::path log = fs::temp_directory_path() / str("bench_step_peer_", getpid());
  BenchStepOptions options = small_step_options();
  options.axes.contexts = {8, 16};
  options.peers = {"eager"};
  options.peer_command = {"sh", "-c",
                          str("echo started >>'", log.string(), "'; echo ready; while read line; ",
                              "do case $line in *release*) echo released >>'", log.string(),
                              "'; echo '{}' ;; *) echo asked >>'", log.string(),
                              "'; echo '{\"seconds\": [0.5]}' ;; esac; done")};
  const BenchReport report = bench_step(options);
  EXPECT_EQ(read_file(log), "started\nasked\nreleased\nasked\nreleased\n");
  EXPECT_EQ(number_at(report.table, 1, "eager"), 64.0);
  fs::remove(log);
}

TEST(BenchStep, LeavesTheCellsOfAPeerEmptyThatDoesNotRun) {
  BenchStepOptions options = small_step_options();
  options.peers = {"eager"};
  for (const char* command : {"exit 1", "echo ready; read line; exit 1",
                              "echo ready; read line; echo '{\"error\": \"out of memory\"}'"}) {
    options.peer_command = {"sh", "-c", command};
    const BenchReport report = bench_step(options);
    const bool memory = std::string(command).find("memory") != std::string::npos;
    EXPECT_EQ(cell_at(report.table, 0, "eager"), memory ? measure::Cell("OOM") : measure::Cell());
    EXPECT_GT(number_at(report.table, 0, "mean"), 0);
    EXPECT_TRUE(some_line_has(report.table.notes, {", eager: "})) << command;
  }
  options.peer_command = {"/no/such/program"};
  EXPECT_TRUE(some_line_has(bench_step(options).table.notes, {", eager: "}));
  options.peer_command.clear();
  EXPECT_THROW(bench_step(options), UserError);
}

TEST(BenchStep, AWrongGradientIsToldAndSoIsNoNumber) {
  StepTask task = small_task();
  std::vector<Record> records = records_of_steps({100, 1});
  EXPECT_EQ(records[0].fault, "");  // nothing was compared
  records[0].facts["gradient error"] = 1e-5;
  describe_records(task, 0, records);
  EXPECT_EQ(records[0].fault, "");
  for (const double wrong : {1e-3, std::numeric_limits<double>::quiet_NaN()}) {
    records[0].facts["gradient error"] = wrong;
    describe_records(task, 0, records);
    EXPECT_NE(report_on(records).failure, "") << wrong;
  }
  EXPECT_LE(gradient_error(task.workload), gradient_tolerance("fp32"));
  task.workload.precision = "bf16";
  const double rounded = gradient_error(task.workload);
  EXPECT_GT(rounded, gradient_tolerance("fp32"));
  EXPECT_LE(rounded, gradient_tolerance("bf16"));
}

TEST(BenchStep, NeededBytesAndTheLayersThatFit) {
  Workload workload = workloads_of(small_step_options().axes).front();
  workload.model.num_layers = 10;
  const double parameters = static_cast<double>(parameter_count(workload.model));
  EXPECT_EQ(needed_bytes(workload).least, 16 * parameters);
  EXPECT_GT(needed_bytes(workload).about, needed_bytes(workload).least);
  for (const auto& [mode, bytes] :
       std::vector<std::pair<std::string, double>>{{"forward", 4}, {"forward-backward", 8}}) {
    workload.mode = mode;
    EXPECT_EQ(needed_bytes(workload).least, bytes * parameters);
  }
  workload.mode = "step";
  Workload less = workload;
  less.moments = "bf16";
  EXPECT_EQ(needed_bytes(less).least, 12 * parameters);
  less = workload;
  less.recompute = "block";
  const PassShape shape = pass_shape(workload);
  EXPECT_NEAR(
      needed_bytes(workload).about - needed_bytes(less).about,
      9 * (block_saved_bytes(workload.model, shape) - residual_stream_bytes(workload.model, shape)),
      1);
  Workload four = workload;
  four.model.num_layers = 4;
  EXPECT_EQ(fitting_layers(workload, needed_bytes(four).about), 4);
  EXPECT_EQ(fitting_layers(workload, needed_bytes(four).about - 1), 3);
  EXPECT_EQ(fitting_layers(workload, 2 * needed_bytes(four).about, 2), 4);
  EXPECT_EQ(fitting_layers(workload, 1e18), 9);  // fewer than there are
  EXPECT_EQ(fitting_layers(workload, 1), 0);
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
  options.axes.sizes = {"10/16/1/1"};  // a head of 10, which is no multiple of 8
  const BenchReport one = bench_step(options);
  EXPECT_EQ(cell_at(one.table, 2, "mean"), measure::Cell("failed"));
  options.axes.attentions = {"cpu"};
  EXPECT_THROW(bench_step(options), UserError);
}

TEST(BenchStep, MistakesAreSentences) {
  BenchStepOptions options = small_step_options();
  options.axes.sizes = {"huge"};
  EXPECT_THROW(bench_step(options), UserError);
  options = small_step_options();
  options.warmups.clear();
  EXPECT_THROW(bench_step(options), UserError);
  options = small_step_options();
  options.steps = 0;
  EXPECT_THROW(bench_step(options), UserError);
}

}  // namespace
}  // namespace flashstep::tools
