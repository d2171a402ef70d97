#include "flashstep/report/bench_step.h"

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/model/cost.h"

namespace flashstep::report {
namespace {

BenchStepOptions small_options() {
  StepCase c = peer_step_cases().front();
  c.name = "small";
  c.model.context_length = 8;
  c.model.num_layers = 1;
  c.model.vocab_size = 64;
  c.batch_size = 2;
  BenchStepOptions options;
  options.cases = {c};
  options.rounds = 2;
  options.steps = 2;
  return options;
}

measure::Cell cell(const measure::Table& table, size_t row, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].name == column) return table.rows[row][i];
  }
  ADD_FAILURE() << "no column " << column;
  return {};
}

TEST(BenchStep, HasThePeersSizes) {
  std::vector<std::string> millions;
  for (const auto& c : peer_step_cases()) {
    millions.push_back(fixed(static_cast<double>(parameter_count(resolved(c.model))) / 1e6, 2));
  }
  EXPECT_EQ(millions, (std::vector<std::string>{"1.90", "5.31", "23.17"}));
}

TEST(BenchStep, MeasuresOursAlone) {
  const auto table = bench_step(small_options());
  ASSERT_EQ(table.rows.size(), 2u);  // fp32, bf16
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_GT(std::get<double>(cell(table, row, "tokens").value()), 0);
    EXPECT_GT(std::get<double>(cell(table, row, "of limit").value()), 0);
  }
}

TEST(BenchStep, SetsAPeerBeside) {
  BenchStepOptions options = small_options();
  options.precisions = {"fp32"};
  // A peer that always says half a second: 16 tokens a step are 32 tokens/s.
  options.peer_command = {"sh", "-c",
                          "echo ready; while read line; do echo '{\"seconds\": [0.5, 0.5]}'; done"};
  const auto table = bench_step(options);
  EXPECT_EQ(std::get<double>(cell(table, 0, "eager").value()), 32.0);
  EXPECT_NE(table.notes.back().find("Verdict: at least PyTorch eager's speed"), std::string::npos)
      << table.notes.back();
}

TEST(BenchStep, LeavesTheCellsOfAPeerEmptyThatDoesNotRun) {
  BenchStepOptions options = small_options();
  options.precisions = {"fp32"};
  for (const char* command : {"exit 1", "echo ready; read line; exit 1"}) {
    options.peer_command = {"sh", "-c", command};
    const auto table = bench_step(options);
    EXPECT_EQ(cell(table, 0, "eager"), measure::Cell()) << command;
    EXPECT_GE(table.notes.size(), 2u);
  }
}

}  // namespace
}  // namespace flashstep::report
