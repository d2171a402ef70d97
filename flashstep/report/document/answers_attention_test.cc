// Results that reverse each conclusion about attention turn the text.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

struct Grid {
  double kept_at_1024 = 10, kept_at_4096 = 160;  // MiB, of the formula
  double ours_kept = 1;
  bool fits = false;            // N 16384
  Cell backward_peak = Cell();  // MiB, of N 4096, where a matrix takes 512
  double compiled = 0.5;
  Cell compiled_kept = 10.0;
};

std::vector<Result> grid(const Grid& g) {
  const auto row = [&](const char* contestant, int n, Cell forward, Cell backward, Cell kept) {
    const bool counted = std::string(contestant) == "naive" && n == 4096;
    return std::vector<Cell>{contestant,
                             "fp32",
                             8,
                             64,
                             n,
                             forward,
                             backward,
                             kept,
                             counted ? Cell(1024.0) : Cell(),
                             counted ? g.backward_peak : Cell()};
  };
  Rows rows = {row("naive", 1024, 1.0, 2.0, g.kept_at_1024),
               row("naive", 4096, 16.0, 32.0, g.kept_at_4096),
               row("cuda", 1024, 0.5, 1.0, g.ours_kept), row("cuda", 4096, 4.0, 8.0, g.ours_kept),
               row("compiled", 1024, g.compiled, 2 * g.compiled, g.compiled_kept)};
  rows.push_back(g.fits ? row("naive", 16384, 250.0, 500.0, 16 * g.kept_at_4096)
                        : row("naive", 16384, "OOM", "OOM", Cell()));
  return {result_of("attention_grid", "attention_grid",
                    {table_of({"contestant", "dtype", "B", "D", "N", "forward", "backward",
                               "before backward", "forward peak", "backward peak"},
                              rows)})};
}

TEST(AnswersAttention, WhereMemoryRunsOut) {
  const std::string text = answer_text("pytorch_attention", grid({}));
  EXPECT_SAYS(text, "The smallest that runs out of memory has N 16,384");
  EXPECT_SAYS(text, "8 x 16,384^2 x 4 bytes = 8.00 GiB");
  EXPECT_SAYS_NOT(text, "at once");  // where memory is not counted
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.backward_peak = 2048.0})),
              "At N 4,096 forward held 2.0 of them at once and backward 4.0");
  EXPECT_SAYS(
      answer_text("pytorch_attention", grid({.backward_peak = 1536.0})),
      "backward 3.0, Q, K, V and their gradients included: here that would be 16.0 and 24.0 GiB");
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.fits = true})),
              "No case of the formula runs out of memory here, up to N 16384");
}

TEST(AnswersAttention, HowMemoryGrows) {
  EXPECT_SAYS(answer_text("pytorch_attention", grid({})), "N^2.0, with the square of the length");
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.kept_at_4096 = 40})),
              "N^1.0, about with the length");
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.kept_at_4096 = 13})),
              "N^0.2, more slowly than the length");
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.kept_at_4096 = 640})),
              "N^3.0, faster than the square");
}

TEST(AnswersAttention, WhetherTilesKeepLess) {
  EXPECT_SAYS(answer_text("pytorch_attention", grid({})), "160 times smaller with `cuda`");
  EXPECT_SAYS(answer_text("pytorch_attention", grid({.ours_kept = 320})), "NOT smaller");
}

TEST(AnswersAttention, WhetherCompilingPays) {
  const char* name = "torch_compile (a)";
  EXPECT_SAYS(answer_text(name, grid({})), "2.00 times as fast as without it forward");
  EXPECT_SAYS(answer_text(name, grid({.compiled = 1.01})), "is as fast as without it forward");
  EXPECT_SAYS(answer_text(name, grid({.compiled = 2})), "only 0.50 times as fast as without it");
  EXPECT_SAYS(answer_text(name, grid({})), "are stored all the same");
  EXPECT_SAYS(answer_text(name, grid({.compiled_kept = 4.0})), "is not stored any more");
  EXPECT_SAYS(answer_text(name, grid({.compiled_kept = 14.0})), "more is stored");
  EXPECT_SAYS_NOT(answer_text(name, grid({.compiled_kept = Cell()})), "stored");
}

std::vector<Result> race(double ratio, int wrong, Cell naive = 10.0) {
  const auto row = [&](const char* pass) {
    return std::vector<Cell>{"bf16", 1024, 64, "causal", pass, "cuda", 1.0, ratio, "flash", naive};
  };
  const auto run = [&](const char* pass) {
    return std::vector<Cell>{"bf16", 1024, "causal", pass, "cuda", "ours", wrong};
  };
  return {result_of("attention", "attention",
                    {table_of({"dtype", "N", "D", "mask", "pass", "ours", "time", "x best peer",
                               "best peer", "naive"},
                              {row("forward"), row("backward")}),
                     table_of({"dtype", "N", "mask", "pass", "contestant", "whose", "wrong"},
                              {run("forward"), run("backward")})})};
}

TEST(AnswersAttention, WhetherKernelsAreRight) {
  for (const char* name : {"flash_forward", "flash_backward"}) {
    EXPECT_SAYS(answer_text(name, race(2, 0)), "Right: in 1 run");
    EXPECT_SAYS(answer_text(name, race(2, 3)), "NOT right: 3 elements");
  }
}

TEST(AnswersAttention, BothMasksAreAskedOf) {
  const auto with_full = [](int wrong) {
    std::vector<Result> results = race(2, 0);
    results.push_back(race(1.5, wrong).front());
    results[1].measurement = "attention_throughput";
    for (NamedTable& named : results[1].tables) {
      for (auto& row : named.table.rows) row[named.name == "table0" ? 3 : 2] = "full";
    }
    return results;
  };
  const char* name = "flash_forward";
  EXPECT_SAYS(answer_text(name, race(2, 0)), "No case with the mask full was measured");
  EXPECT_SAYS(answer_text(name, with_full(0)), "Right: in 2 runs (`cuda`; mask: causal, full)");
  EXPECT_SAYS_NOT(answer_text(name, with_full(0)), "No case");
  EXPECT_SAYS(answer_text(name, with_full(3)), "NOT right: 3 elements in 1 of 2 runs (mask: full)");
  const std::string race = answer_text("flash_benchmarking", with_full(0));
  EXPECT_SAYS(race, "bf16 forward, causal, batch : ours is 2.00 times");
  EXPECT_SAYS(race, "bf16 forward, full, batch : ours is 1.50 times");
}

TEST(AnswersAttention, HowFastKernelsAre) {
  EXPECT_SAYS(answer_text("flash_benchmarking", race(2, 0)), "2.00 times as fast as the best peer");
  EXPECT_SAYS(answer_text("flash_benchmarking", race(2, 0)), "10.00 times as fast as the formula");
  EXPECT_SAYS(answer_text("flash_benchmarking", race(0.5, 0)), "only 0.50 times as fast");
  EXPECT_SAYS(answer_text("flash_benchmarking", race(2, 0, "OOM")),
              "the formula has no room for 1 case");
}

TEST(AnswersAttention, Leaderboards) {
  auto results = race(1.5, 0);
  results[0].section = results[0].measurement = "leaderboard";
  EXPECT_SAYS(answer_text("leaderboard", results, "2025"), "Not measured");  // no row of both
  results[0].tables[0].table.rows[0][4] = "both";
  EXPECT_SAYS(answer_text("leaderboard", results, "2025"), "1.50 times as fast as the best peer");
  EXPECT_SAYS(answer_text("leaderboard", results, "2026"), "Not measured: needs fully sharded");
}

}  // namespace
}  // namespace flashstep::report
