#include "flashstep/bench/attention.h"

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/attention_cases.h"
#include "flashstep/bench/attention_implementations.h"
#include "flashstep/bench/picture_json.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/bench/test_turns.h"

namespace flashstep::tools {
namespace {

Record run_of(const std::string& implementation, bool ours, int64_t n, std::vector<double> seconds,
              const std::string& pass = "forward") {
  Record record;
  record.key = {{"dtype", "bf16"}, {"B", 1},  {"H", 1},           {"N", n},
                {"M", n},          {"D", 64}, {"mask", "causal"}, {"pass", pass}};
  record.what = describe({"bf16", 1, 1, n, n, 64, true});
  record.implementation = implementation;
  record.ours = ours;
  const auto length = static_cast<double>(n);
  record.facts = {{"flops", 4 * 64 * length * (length + 1) / 2},
                  {"limit seconds", 1e-4},
                  {"chosen", "cuda"},
                  {"checked heads", 1}};
  if (seconds.empty()) {
    record.outcome = outcome_from("OOM: 34 GiB");
    return record;
  }
  record.samples["seconds"] = std::move(seconds);
  record.facts["wrong"] = 0;
  return record;
}

Records two_rows() {
  return Records({run_of("auto", true, 1024, {1e-3, 1e-3}),
                  run_of("naive", false, 1024, {4e-3, 4e-3}),
                  run_of("flash", false, 1024, {2e-3, 2e-3}), run_of("auto", true, 65536, {2e-3}),
                  run_of("naive", false, 65536, {}), run_of("flash", false, 65536, {1e-3})});
}

BenchReport report_on(const Records& records) {
  return report_of(attention_benchmark({}), records);
}

TEST(BenchAttentionTable, ShowsOursBesideTheBestPeer) {
  const BenchReport report = report_on(two_rows());
  const auto& table = report.table;
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(cell_at(table, 0, "best peer"), measure::Cell("flash"));
  EXPECT_EQ(number_at(table, 0, "x best peer"), 2.0);
  EXPECT_EQ(number_at(table, 1, "x best peer"), 0.5);
  EXPECT_NEAR(number_at(table, 0, "of limit"), 10, 1e-9);
  EXPECT_EQ(cell_at(table, 1, "naive"), measure::Cell("OOM"));
  const double flops = 4.0 * 64 * 1024 * 1025 / 2;
  EXPECT_NEAR(number_at(table, 0, "rate"), flops / 1e-3 / 1e12, 1e-9);
  EXPECT_EQ(report.runs.rows.size(), 6u);
  expect_parts(join(table.notes, "\n"),
               {"naive: OOM: 34 GiB.", "Wrong elements: ours 0 in 2 runs, peers 0.",
                "Verdict: 1.00 x the best peer in geometric mean, at least 0.50 x; as fast or "
                "faster on 1 of 2 rows."});
}

TEST(BenchAttentionTable, TellsWhatItCostsThatBitsRepeat) {
  Records records;
  for (const auto& [n, repeats] : {std::pair(512, 8e-3), {1024, 1e-3}, {2048, 4e-3}}) {
    records.add(run_of("cuda", true, n, {1e-3}, "backward"));
    records.add(run_of(kDeterministic, true, n, {repeats}, "backward"));
  }
  expect_parts(
      join(report_on(records).table.notes, "\n"),
      {"bf16 backward takes 2.00 x as long where bits must repeat (N > 512, 2 rows, at most "
       "4.00 x)."});
}

TEST(BenchAttention, FailsWhereOursDoes) {
  Records records = two_rows();
  records.all()[0].outcome = outcome_from("OOM: 3 GiB");
  records.all()[1].outcome = outcome_from("failed: a peer");
  EXPECT_EQ(report_on(records).failure, "");
  records.all()[3].outcome = outcome_from("failed: the GPU");
  const std::string failure = report_on(records).failure;
  EXPECT_EQ(failure.find("[bench attention] bf16 B 1 H 1 N 65536"), 0u) << failure;
  EXPECT_TRUE(failure.ends_with(" failed: the GPU")) << failure;
}

TEST(BenchAttention, MeasuresEveryImplementationOfTheCpu) {
  for (const int64_t heads : {2, 0}) {  // without heads ours take tensors without them
    const AttentionCase c = {"fp32", 1, heads, 16, 16, 8, true};
    const auto records = measure_attention(c, kAttentionPasses, attention_candidates(at::kCPU),
                                           at::kCPU, short_turns());
    ASSERT_GE(records.size(), 9u);
    EXPECT_EQ(records[0].implementation, "auto");
    EXPECT_TRUE(records[0].ours);
    for (const Record& record : records) {
      EXPECT_EQ(record.outcome.sentence(), "") << record.implementation;
      EXPECT_EQ(record.number("wrong"), 0) << record.implementation;
      EXPECT_GT(record.number("limit seconds"), 0);
      EXPECT_GT(record.median("seconds"), 0) << record.implementation;
    }
  }
}

const AttentionCase kSmall = {"fp32", 1, 2, 16, 16, 8, true};

// Its outcome is one number everywhere.
class Constant : public AttentionImplementation {
 public:
  Constant(const AttentionRound& round, double value)
      : AttentionImplementation(round), all_(at::full_like(round.inputs[0].q, value)) {}
  AttentionOutcome outcome(bool) override { return {all_, all_, all_, all_}; }
  std::vector<double> turn(const std::string&, int64_t, int64_t samples, int64_t) override {
    return std::vector<double>(static_cast<size_t>(samples), 1e-3);
  }

 private:
  at::Tensor all_;
};

std::vector<Record> measure_constant(double value) {
  const AttentionCandidate constant = {
      "constant", true,
      [=](const AttentionRound& round) { return std::make_unique<Constant>(round, value); },
      nullptr};
  return measure_attention(kSmall, {"forward", "backward"}, {constant}, at::kCPU, short_turns());
}

TEST(BenchAttention, CountsWrongElementsByPass) {
  const auto records = measure_constant(0);
  const double elements = 2 * 16 * 8;
  EXPECT_GT(records[0].number("wrong"), elements * 9 / 10);  // no output is zero
  EXPECT_GT(records[1].number("wrong"), 2 * elements);
  for (const Record& record : measure_constant(std::nan(""))) {
    EXPECT_GT(record.number("wrong"), 0);
    EXPECT_TRUE(std::isnan(record.number("error")));
  }
}

// Five matrices of 16 TiB; a CPU would not say no in time.
TEST(BenchAttention, TheFormulaIsNotTriedWhereItCannotFit) {
  AttentionRound round;
  round.c = {"fp32", 64, 16, 65536, 65536, 64, true};
  for (const auto& implementation : attention_candidates(at::kCPU)) {
    if (implementation.name != "naive") continue;
    const Outcome outcome = attempt([&] { implementation.make(round); });
    EXPECT_EQ(outcome.sentence().rfind("OOM: the formula needs ", 0), 0u) << outcome.sentence();
  }
}

TEST(BenchAttention, TakesABaselineInAnotherProcess) {
  const auto outcome = [&](std::vector<std::string> command) {
    return measure_attention(kSmall, {"forward"}, {compiled_candidate(command)}, at::kCPU,
                             short_turns())[0]
        .outcome.sentence();
  };
  const auto answering = [&](const std::string& answer) {
    return outcome({"sh", "-c", "echo ready; while read line; do echo '" + answer + "'; done"});
  };
  EXPECT_EQ(answering(R"({"error": "out of memory"})"), "OOM: out of memory");
  EXPECT_EQ(answering(R"({"error": "no such thing"})"), "failed: no such thing");
  EXPECT_EQ(outcome({"sh", "-c", "echo ready; read line"}), "failed: the Python program ended");
  EXPECT_EQ(outcome({"sh", "-c", "exit 1"}).find("refused: \"sh -c exit 1\" did not start"), 0u);
  EXPECT_EQ(outcome({"/no/such/program"}).find("refused: [launch] cannot start"), 0u);
}

TEST(BenchAttentionPictures, AreDrawnForWhatWasMeasured) {
  for (const auto& [preset, count] : {std::pair("handout", 3u), std::pair("sweep", 2u)}) {
    const auto pictures = attention_pictures(preset, two_rows());
    EXPECT_EQ(pictures.size(), count) << preset;
    for (const auto& picture : pictures) {
      const std::string svg = to_svg(picture);
      EXPECT_NE(svg.find("</svg>"), std::string::npos);
      EXPECT_EQ(svg.find("no data"), std::string::npos) << picture.name;
    }
  }
}

BenchAttentionOptions quick_options() {
  BenchAttentionOptions options;
  options.quick = true;
  options.filter.lengths = {128};
  options.filter.head_dims = {16};
  return options;
}

TEST(BenchAttention, RunsAPreset) {
  BenchAttentionOptions options = quick_options();
  std::vector<std::string> told;
  options.progress = [&](const std::string& line) { told.push_back(line); };
  const auto report = bench_attention(options);
  ASSERT_EQ(report.table.rows.size(), 6u);  // two dtypes, three passes
  EXPECT_EQ(told.size(), 2u);
  EXPECT_EQ(report.signal, 0);
  for (size_t row = 0; row < report.table.rows.size(); ++row) {
    EXPECT_EQ(number_at(report.table, row, "wrong"), 0);
    EXPECT_GT(number_at(report.table, row, "rate"), 0);
  }
  expect_parts(report.table.notes.back(), {"Verdict: "});
}

TEST(BenchAttention, RunsOwnPairs) {
  BenchAttentionOptions options = quick_options();
  options.preset = "sweep";
  options.pairs = {{32, 16}, {16, 48}};
  options.filter = {};
  options.implementations = {"auto", "sdpa"};
  const auto report = bench_attention(options);
  EXPECT_EQ(report.table.rows.size(), 4u);
  EXPECT_EQ(report.runs.rows.size(), 8u);
}

}  // namespace
}  // namespace flashstep::tools
