#include "flashstep/measure/memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/memory.h"
#include "flashstep/report/test_killing_program.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

using measure::MemoryKind;

Workload workload_of_mode(const std::string& mode, const std::string& precision = "fp32",
                          const std::string& attention = "cpu") {
  Workload workload;
  workload.model = ModelConfig();
  workload.model.vocab_size = 97;
  workload.model.context_length = 24;
  workload.model.d_model = 32;
  workload.model.d_ff = 80;
  workload.model.num_layers = 3;
  workload.model.num_heads = 2;
  workload.model.attention = attention;
  workload.batch_size = 2;
  workload.mode = mode;
  workload.precision = precision;
  return workload;
}

MemoryResult measured(const Workload& workload, const std::string& directory = "") {
  MemoryTask task;
  task.workload = workload;
  task.directory = directory;
  return measure_memory(task);
}

int64_t bytes_of(const MemoryResult& result, MemoryKind kind) {
  return result.at_peak[static_cast<size_t>(kind)];
}

TEST(Memory, StateIsWhatTheFormulasSay) {
  const Workload workload = workload_of_mode("step");
  const MemoryResult result = measured(workload);
  const auto state = state_bytes(static_cast<double>(parameter_count(resolved(workload.model))));
  EXPECT_EQ(bytes_of(result, MemoryKind::kParameters), state.parameters);
  const int64_t optimizer = bytes_of(result, MemoryKind::kOptimizerState);
  constexpr int64_t kTensors = 3 + 9 * 3;  // of parameters; each has a step count of 4 bytes
  EXPECT_EQ(optimizer, state.optimizer + 4 * kTensors);
  EXPECT_GE(result.backward, result.forward) << "gradients come, and activations go one by one";
  EXPECT_GE(result.update, state.total());
  EXPECT_EQ(measure::total(result.at_peak),
            std::max({result.forward, result.backward, result.update}));
  EXPECT_GT(result.device_bytes, 0);
}

TEST(Memory, ModesHoldWhatTheyNeed) {
  const MemoryResult forward = measured(workload_of_mode("forward")),
                     both = measured(workload_of_mode("forward-backward"));
  EXPECT_EQ(bytes_of(forward, MemoryKind::kGradients), 0);
  EXPECT_EQ(bytes_of(forward, MemoryKind::kOptimizerState), 0);
  EXPECT_EQ(bytes_of(forward, MemoryKind::kActivations), 0) << "no graph keeps any";
  EXPECT_EQ(forward.backward, 0);
  EXPECT_EQ(forward.block_saved, 0);
  EXPECT_GT(both.backward, forward.forward);
  EXPECT_EQ(bytes_of(both, MemoryKind::kOptimizerState), 0);
  EXPECT_EQ(both.update, 0);
}

TEST(Memory, ABlockKeepsWhatTheFormulasSay) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* attention : {"cpu", "naive"}) {
      const Workload workload = workload_of_mode("forward-backward", precision, attention);
      const MemoryResult result = measured(workload);
      const ModelConfig model = resolved(workload.model);
      const double formula = block_saved_bytes(model, pass_shape(workload));
      // The formula leaves out what does not grow with the model: below a percent even here.
      EXPECT_NEAR(static_cast<double>(result.block_saved) / formula, 1, 0.02)
          << precision << " " << attention << " " << result.block_saved << " " << formula;
      EXPECT_EQ(result.block_gradients, 4 * block_parameter_count(model));
      EXPECT_EQ(result.residual_bytes, residual_stream_bytes(model, pass_shape(workload)));
      int64_t sum = 0;
      for (const SavedByOperator& saved : result.saved_by) sum += saved.bytes;
      EXPECT_EQ(sum, result.block_saved);
    }
  }
}

TEST(Memory, LargestAllocationsAreNamed) {
  MemoryTask task;
  task.workload = workload_of_mode("step", "fp32", "naive");
  task.largest = 1000;
  const MemoryResult result = measure_memory(task);
  int64_t weights = 0;
  for (size_t i = 0; i < result.largest.size(); ++i) {
    const LargeAllocation& a = result.largest[i];
    EXPECT_LE(a.bytes, result.largest[i > 0 ? i - 1 : 0].bytes);
    if (a.kind == "parameters" && a.bytes == 4 * 80 * 32) weights += a.count;
  }
  EXPECT_EQ(weights, 3 * 3) << "w1, w2 and w3 of three blocks";
  ASSERT_FALSE(result.largest.empty());
  EXPECT_EQ(result.largest[0].bytes, 4 * 2 * 24 * 97) << "the logits, or their gradient";
  task.largest = 5;
  EXPECT_EQ(measure_memory(task).largest.size(), 5u);
}

TEST(Memory, FilesOfACase) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "memory_case";
  make_directories(folder);
  const Workload workload = resolved_workload(workload_of_mode("step"));
  const MemoryResult result = measured(workload, folder.string());
  const auto snapshot = folder / case_name(workload) / "memory_snapshot.pickle";
  const measure::MemoryTrace trace = measure::read_snapshot(read_file(snapshot), "test");
  const auto* step = measure::find_range(trace, "step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(measure::peak(trace, trace.all()).bytes, result.at_peak) << "with a warm-up before it";
  EXPECT_TRUE(
      std::filesystem::exists(folder / ("memory_timeline_" + case_name(workload) + ".svg")));
  const BenchReport report = snapshot_report(snapshot, 5, folder.string());
  EXPECT_NE(measure::to_text(report.table).find("parameters"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder / "memory_timeline_snapshot.svg"));
  std::filesystem::remove_all(folder);
}

TEST(Memory, ResultsTravelAsJson) {
  const MemoryResult result = measured(workload_of_mode("step"));
  const MemoryResult read = memory_result_from_json(to_json(result));
  EXPECT_EQ(to_json(read), to_json(result));
  EXPECT_EQ(read.at_peak, result.at_peak);
  EXPECT_EQ(read.largest.size(), result.largest.size());
}

size_t lines_with(const measure::Table& table, const std::string& text) {
  size_t lines = 0;
  for (const auto& row : table.rows) {
    for (const auto& cell : row) {
      if (cell.is_text() && std::get<std::string>(cell.value()) == text) {
        ++lines;
        break;
      }
    }
  }
  return lines;
}

TEST(Memory, TablesTurnWithTheResults) {
  MemoryResult good;
  good.task.workload = resolved_workload(workload_of_mode("step"));
  good.at_peak[0] = 3 << 20;
  good.peak_range = "backward/layers.1";
  good.block_saved = 1000;
  good.saved_by = {{"aten::mm", 600}, {"aten::add", 400}};
  MemoryResult bad;
  bad.task.workload = good.task.workload;
  bad.task.workload.model.context_length = 48;
  bad.failure = "OOM: the kernel ended the process (SIGKILL)";
  const BenchReport report = memory_tables({good, bad});
  EXPECT_EQ(report.table.rows.size(), 2u);
  EXPECT_EQ(lines_with(report.table, "OOM"), 1u);
  EXPECT_EQ(lines_with(report.table, "backward/layers.1"), 1u);
  const std::string text = to_text(report);
  EXPECT_NE(text.find(bad.failure), std::string::npos) << "why stands in a note\n" << text;
  ASSERT_EQ(report.tables.size(), 4u);
  EXPECT_EQ(report.tables[1].table.rows.size(), 1u) << "nothing of a block that was not measured";
  EXPECT_EQ(report.tables[2].table.rows.size(), 2u);
  const double formula =
      block_saved_bytes(good.task.workload.model, pass_shape(good.task.workload));
  good.block_saved = static_cast<int64_t>(3 * formula);
  EXPECT_NE(memory_tables({good}).table.notes.back(), report.table.notes.back());
}

// Two contexts, of which one's process is killed by `signal`.
BenchReport with_one_killed(const std::string& signal) {
  const char* flashstep = std::getenv("FLASHSTEP_PROGRAM");
  const KillingProgram program(flashstep ? flashstep : "flashstep", "\"context_length\": 24,",
                               signal);
  MemoryOptions options;
  options.axes.sizes = {"32/64/2/2"};
  options.axes.contexts = {24, 16};
  options.axes.common.model.vocab_size = 97;
  options.axes.common.batch_size = 2;
  options.reduce = false;
  options.program = program.path();
  return memory_report(options);
}

TEST(Memory, AProcessThatCrashesIsTheMachinesFailure) {
  const BenchReport report = with_one_killed("SEGV");
  ASSERT_EQ(report.table.rows.size(), 2u);
  EXPECT_EQ(lines_with(report.table, "failed"), 1u);
  EXPECT_EQ(report.tables[1].table.rows.size(), 1u) << "the other context is measured";
  EXPECT_NE(report.failure.find("[memory] 32/64/2/2, batch 2, context 24, fp32, step failed: "),
            std::string::npos)
      << report.failure;
  EXPECT_NE(report.failure.find("was killed by SIGSEGV"), std::string::npos) << report.failure;
}

// Who kills a process has not shown that memory was too small: the kernel says when it did.
TEST(Memory, AKilledProcessIsOutOfMemoryOnlyIfTheKernelSaysSo) {
  const auto kills = measure::oom_kills();
  const BenchReport report = with_one_killed("KILL");
  if (measure::may_have_killed_since(kills)) GTEST_SKIP() << "memory is short here";
  ASSERT_EQ(report.table.rows.size(), 2u);
  EXPECT_EQ(lines_with(report.table, "failed"), 1u);
  EXPECT_NE(report.failure.find("SIGKILL"), std::string::npos) << report.failure;
}

TEST(Memory, TimelineHasTheKindsAndThePasses) {
  measure::MemoryTrace trace;
  for (uint32_t i = 0; i < 4; ++i) {
    measure::Allocation a;
    a.bytes = 1 << 20;
    a.begin = i;
    a.kind = i == 0 ? MemoryKind::kParameters : MemoryKind::kActivations;
    trace.allocations.push_back(a);
    trace.events.push_back({i * 0.001, i, false});
  }
  trace.ranges = {{"step", {1, 4}, 0.0005, 0.004}, {"step/forward", {1, 3}, 0.0008, 0.0025}};
  const auto chart = memory_timeline(trace, {1, 4}, "title", "");
  ASSERT_EQ(chart.spans.size(), 1u);
  EXPECT_EQ(chart.spans[0].label, "forward");
  EXPECT_NEAR(chart.spans[0].end, 1.5, 1e-9) << "milliseconds from the window's beginning";
  EXPECT_EQ(chart.y_label, "MiB of tensors");
  for (const measure::AreaLayer& layer : chart.layers) {
    ASSERT_EQ(layer.values.size(), chart.x.size());
    if (layer.name == "activations") {
      EXPECT_EQ(layer.values.back(), 3);
    } else {
      EXPECT_EQ(layer.values.front(), layer.name == "parameters" ? 1 : 0) << layer.name;
    }
  }
}

}  // namespace
}  // namespace flashstep::report
