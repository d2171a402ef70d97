#include "flashstep/report/bench_attention.h"

#include <csignal>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/bench_attention_cases.h"
#include "flashstep/report/bench_attention_rivals.h"
#include "flashstep/report/bench_attention_table.h"
#include "flashstep/report/test_table.h"

namespace flashstep::report {
namespace {

AttentionRun run_of(const std::string& name, bool ours, std::vector<double> seconds) {
  AttentionRun run;
  run.contestant = name;
  run.ours = ours;
  run.seconds = std::move(seconds);
  run.wrong = 0;
  return run;
}

AttentionResult result_of_runs(const std::string& dtype, int64_t n, AttentionPass pass,
                               std::vector<AttentionRun> runs) {
  AttentionResult result{{dtype, 1, 1, n, n, 64, true}, pass, std::move(runs), 1e-4, 1, 1, "cuda"};
  return result;
}

std::string joined(const std::vector<std::string>& sentences) { return join(sentences, "\n"); }

std::vector<AttentionResult> two_rows() {
  AttentionRun oom = run_of("naive", false, {});
  oom.trouble = "OOM: 34 GiB";
  oom.wrong.reset();
  return {result_of_runs("bf16", 1024, AttentionPass::kForward,
                         {run_of("auto", true, {1e-3, 1e-3}), run_of("naive", false, {4e-3, 4e-3}),
                          run_of("flash", false, {2e-3, 2e-3})}),
          result_of_runs("bf16", 65536, AttentionPass::kForward,
                         {run_of("auto", true, {2e-3}), oom, run_of("flash", false, {1e-3})})};
}

TEST(BenchAttentionTable, ShowsOursBesideTheBestPeer) {
  const auto table = attention_table(two_rows());
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(cell_at(table, 0, "best peer"), measure::Cell("flash"));
  EXPECT_EQ(number_at(table, 0, "x best peer"), 2.0);
  EXPECT_EQ(number_at(table, 1, "x best peer"), 0.5);
  EXPECT_NEAR(number_at(table, 0, "of limit"), 10, 1e-9);
  EXPECT_EQ(cell_at(table, 1, "naive"), measure::Cell("OOM"));
  const double flops = 4.0 * 64 * 1024 * 1025 / 2;
  EXPECT_NEAR(number_at(table, 0, "rate"), flops / 1e-3 / 1e12, 1e-9);
  const auto runs = attention_runs_table(two_rows());
  EXPECT_EQ(runs.rows.size(), 6u);
  EXPECT_EQ(joined(attention_troubles(two_rows())), "naive, 1 cell: OOM: 34 GiB.");
}

TEST(BenchAttentionVerdict, HoldsTheHandoutAgainstItsBars) {
  const std::string text = joined(attention_verdict("handout", two_rows()));
  EXPECT_NE(text.find("on 1 of 2 rows (bar all: BROKEN); not on N 65536 D 64"), std::string::npos)
      << text;
  EXPECT_NE(text.find("bf16 forward, N <= 16384: 2.000 x flash in geometric mean over 1 rows (bar "
                      "1.3: kept)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Of the 1 rows that naive cannot fit, 1 run (bar all: kept)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Wrong elements: ours 0 in 2 runs, peers 0 (kept)"), std::string::npos);
  EXPECT_NE(text.find("Verdict: 1.00 x the best peer in geometric mean, at least 0.50 x; as fast "
                      "or faster on 1 of 2 rows."),
            std::string::npos)
      << text;
}

TEST(BenchAttentionVerdict, SeesWrongElementsAndFailures) {
  auto results = two_rows();
  results[0].runs[0].wrong = 3;
  EXPECT_NE(
      joined(attention_verdict("handout", results)).find("ours 3 in 2 runs, peers 0 (BROKEN)"),
      std::string::npos);
  results = two_rows();
  results[1].runs[0] = run_of("auto", true, {});
  results[1].runs[0].trouble = "failed: it broke";
  EXPECT_NE(joined(attention_verdict("handout", results)).find("(1 failed), peers 0 (BROKEN)"),
            std::string::npos);
  EXPECT_EQ(joined(attention_verdict("cpu", {})), "Verdict: nothing was measured.");
}

TEST(BenchAttentionVerdict, HoldsTheCpuAgainstItsBars) {
  std::vector<AttentionResult> results;
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    results.push_back(result_of_runs(
        "bf16", 512, pass, {run_of("auto", true, {1e-3}), run_of("sdpa", false, {1.6e-3})}));
  }
  const std::string text = joined(attention_verdict("cpu", results));
  EXPECT_NE(text.find("bf16 forward: 1.600 x sdpa in geometric mean over 1 rows (bar 1.5: kept)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("(bar 1.8: BROKEN)"), std::string::npos) << text;
}

TEST(BenchAttentionVerdict, ComparesAutoWithWhatItCouldHaveChosen) {
  const std::vector<AttentionResult> results = {
      result_of_runs("bf16", 512, AttentionPass::kForward,
                     {run_of("auto", true, {1e-3}), run_of("cuda", true, {1e-3}),
                      run_of("sdpa", false, {2e-3})}),
      result_of_runs("bf16", 512, AttentionPass::kBackward,
                     {run_of("auto", true, {3e-3}), run_of("cuda", true, {3.8e-3}),
                      run_of("sdpa", false, {2e-3})}),
      result_of_runs("bf16", 1024, AttentionPass::kForward,
                     {run_of("auto", true, {1e-3}), run_of("cuda", true, {1e-3}),
                      run_of("sdpa", false, {2e-3})})};
  const std::string text = joined(attention_verdict("throughput", results));
  EXPECT_NE(text.find("in 1 of 2 cases (bar all: BROKEN); the worst 1.20 x at bf16 B 1 H 1 N 512 D "
                      "64 causal (cuda, not sdpa)"),
            std::string::npos)
      << text;
}

TEST(BenchAttentionVerdict, TellsWhatItCostsThatBitsRepeat) {
  const auto backward = [](int64_t n, double ours, double repeats) {
    return result_of_runs("fp32", n, AttentionPass::kBackward,
                          {run_of("auto", true, {ours}), run_of("cuda", true, {ours}),
                           run_of(kDeterministic, true, {repeats}), run_of("sdpa", false, {1})});
  };
  const std::vector<AttentionResult> results = {
      backward(512, 1e-3, 8e-3), backward(1024, 1e-3, 1e-3), backward(2048, 1e-3, 4e-3)};
  const std::string text = joined(attention_verdict("handout", results));
  EXPECT_NE(text.find("fp32 backward takes 2.00 x as long where bits must repeat (N > 512, 2 rows, "
                      "at most 4.00 x)."),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("auto takes what is within 5 % of the fastest implementation, all passes "
                      "together, in 3 of 3 cases"),
            std::string::npos)
      << text;
}

TEST(BenchAttention, FailsWhereOursDoes) {
  std::vector<AttentionResult> results = two_rows();
  for (AttentionRun& run : results[0].runs)
    run.trouble = run.ours ? "OOM: 3 GiB" : "failed: a peer";
  EXPECT_EQ(failure_of_ours(results), "");
  for (AttentionRun& run : results[1].runs) run.trouble = "failed: the GPU";
  const std::string failure = failure_of_ours(results);
  EXPECT_EQ(failure.find("[bench attention] " + describe(results[1].c)), 0u) << failure;
  EXPECT_TRUE(failure.ends_with(" failed: the GPU")) << failure;
}

TEST(BenchAttentionPictures, AreDrawnForWhatWasMeasured) {
  for (const auto& preset : {"handout", "sweep"}) {
    const auto pictures = attention_pictures(preset, two_rows(), "a test");
    EXPECT_EQ(pictures.size(), 3u) << preset;
    for (const auto& picture : pictures) {
      const std::string svg =
          std::visit([](const auto& p) { return measure::to_svg(p); }, picture.picture);
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
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t, const std::string&) { last = done; };
  const auto report = bench_attention(options);
  ASSERT_EQ(report.table.rows.size(), 6u);  // two dtypes, three passes
  EXPECT_EQ(last, 2u);
  EXPECT_EQ(report.signal, 0);
  const size_t wrong = place_of(report.table, "wrong"), rate = place_of(report.table, "rate");
  for (const auto& row : report.table.rows) {
    EXPECT_EQ(row[wrong], measure::Cell(0));
    EXPECT_GT(std::get<double>(row[rate].value()), 0);
  }
  EXPECT_NE(report.table.notes.back().find("Verdict: "), std::string::npos);
}

TEST(BenchAttention, RunsOwnPairs) {
  BenchAttentionOptions options = quick_options();
  options.preset = "sweep";
  options.pairs = {{32, 16}, {16, 48}};
  options.filter = {};
  options.contestants = {"auto", "sdpa"};
  const auto report = bench_attention(options);
  EXPECT_EQ(report.table.rows.size(), 4u);
  EXPECT_EQ(report.runs.rows.size(), 8u);
}

TEST(BenchAttention, TellsOfAnInterruption) {
  AttentionReport report;
  {
    const SignalGuard guard;
    std::raise(SIGTERM);
    report = bench_attention(quick_options());
  }
  EXPECT_EQ(report.signal, SIGTERM);
  EXPECT_TRUE(report.table.rows.empty());
  EXPECT_EQ(report.table.notes.back(), "Interrupted: 0 of 2 cases were measured.");
}

TEST(BenchAttention, NamesWhatIsWrong) {
  BenchAttentionOptions options = quick_options();
  options.filter.lengths = {100};
  EXPECT_THROW(bench_attention(options), UserError);
  options = quick_options();
  options.contestants = {"nobody"};
  EXPECT_THROW(bench_attention(options), UserError);
  options = quick_options();
  options.device = "tpu";
  EXPECT_THROW(bench_attention(options), UserError);
}

}  // namespace
}  // namespace flashstep::report
