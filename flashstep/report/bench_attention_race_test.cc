#include "flashstep/report/bench_attention_race.h"

#include <cmath>
#include <csignal>
#include <new>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/error.h"
#include "flashstep/report/bench_attention_compiled.h"

namespace flashstep::report {
namespace {

const AttentionCase kCase = {"fp32", 1, 2, 16, 16, 8, true};

RaceOptions short_race() {
  RaceOptions options;
  options.cell_seconds = options.warmup_seconds = 1e-4;
  options.turns = 2;
  options.least_samples = options.most_samples = 4;
  return options;
}

// Answers with `seconds` for every call, and with an outcome of zeros.
class FakeRival : public AttentionRival {
 public:
  FakeRival(const AttentionRound& round, double seconds, std::vector<int64_t>* calls)
      : zeros_(at::zeros_like(round.inputs[0].q)), seconds_(seconds), calls_(calls) {}
  AttentionOutcome outcome(bool) override { return {zeros_, zeros_, zeros_, zeros_}; }
  std::vector<double> turn(AttentionPass, int64_t, int64_t samples, int64_t calls) override {
    if (calls_ != nullptr) calls_->push_back(samples * calls);
    return std::vector<double>(static_cast<size_t>(samples), seconds_);
  }

 private:
  at::Tensor zeros_;
  double seconds_;
  std::vector<int64_t>* calls_;
};

AttentionContestant fake(double seconds, std::vector<int64_t>* calls = nullptr) {
  return {"fake", true,
          [=](const AttentionRound& round) {
            return std::make_unique<FakeRival>(round, seconds, calls);
          },
          nullptr};
}

template <typename Error>
AttentionContestant failing(const Error& error) {
  return {"failing", false,
          [error](const AttentionRound&) -> std::unique_ptr<AttentionRival> { throw error; },
          nullptr};
}

TEST(BenchAttentionRace, RunsEveryContestantOfTheCpu) {
  const auto results =
      race(kCase, {AttentionPass::kForward, AttentionPass::kBackward, AttentionPass::kBoth},
           attention_contestants(at::kCPU), at::kCPU, short_race());
  ASSERT_EQ(results.size(), 3u);
  for (const auto& result : results) {
    EXPECT_GT(result.limit_seconds, 0);
    ASSERT_GE(result.runs.size(), 3u);
    EXPECT_EQ(result.runs[0].contestant, "auto");
    EXPECT_TRUE(result.runs[0].ours);
    for (const auto& run : result.runs) {
      EXPECT_EQ(run.trouble, "") << run.contestant;
      EXPECT_EQ(run.wrong, 0) << run.contestant;
      EXPECT_GE(run.seconds.size(), 1u) << run.contestant;  // one where the machine is busy
      EXPECT_GT(run.median(), 0) << run.contestant;
    }
  }
}

TEST(BenchAttentionRace, TensorsWithoutHeadsReachOursWithoutThem) {
  AttentionCase c = kCase;
  c.heads = 0;
  const auto results =
      race(c, {AttentionPass::kBoth}, attention_contestants(at::kCPU), at::kCPU, short_race());
  for (const auto& run : results[0].runs) EXPECT_EQ(run.wrong, 0) << run.contestant;
}

TEST(BenchAttentionRace, CountsWrongElementsByPass) {
  const auto results = race(kCase, {AttentionPass::kForward, AttentionPass::kBackward},
                            {fake(1e-3)}, at::kCPU, short_race());
  const int64_t elements = 2 * 16 * 8;
  EXPECT_GT(results[0].runs[0].wrong.value(), elements * 9 / 10);  // no output is zero
  EXPECT_GT(results[1].runs[0].wrong.value(), 2 * elements);
}

TEST(BenchAttentionRace, TellsWhatWentWrong) {
  const auto results = race(
      kCase, {AttentionPass::kForward},
      {failing(std::bad_alloc()), failing(UserError("refused: too warm")),
       failing(MachineError("it broke\nbadly")), failing(UserError("OOM: 3 GiB")),
       failing(MachineError("CUDA out of memory")), failing(UserError("a head of 10")), fake(1e-3)},
      at::kCPU, short_race());
  const auto& runs = results[0].runs;
  EXPECT_EQ(runs[0].trouble, "OOM");
  EXPECT_EQ(runs[1].trouble, "refused: too warm");
  EXPECT_EQ(runs[2].trouble, "failed: it broke");
  EXPECT_EQ(runs[3].trouble, "OOM: 3 GiB");
  EXPECT_EQ(runs[4].trouble, "OOM: CUDA out of memory");
  EXPECT_EQ(runs[5].trouble, "refused: a head of 10");
  EXPECT_EQ(runs[6].trouble, "");
  EXPECT_TRUE(std::isnan(runs[0].median()));
  EXPECT_FALSE(runs[0].wrong.has_value());
}

// Five matrices of 16 TiB; a CPU would not say no in time.
TEST(BenchAttentionRace, TheFormulaIsNotTriedWhereItCannotFit) {
  AttentionRound round;
  round.c = {"fp32", 64, 16, 65536, 65536, 64, true};
  for (const auto& contestant : attention_contestants(at::kCPU)) {
    if (contestant.name != "naive") continue;
    const std::string trouble = trouble_of([&] { contestant.enter(round); });
    EXPECT_EQ(trouble.rfind("OOM: the formula needs ", 0), 0u) << trouble;
  }
}

// A call of 0.3 ms in a budget of 3 ms: 10 samples in turns, a few calls each when they are short.
TEST(BenchAttentionRace, SpendsItsBudget) {
  RaceOptions options;
  options.cell_seconds = 3e-3;
  options.warmup_seconds = 0;
  std::vector<int64_t> calls;
  EXPECT_EQ(race(kCase, {AttentionPass::kForward}, {fake(3e-4, &calls)}, at::kCPU, options)[0]
                .runs[0]
                .seconds.size(),
            12u);  // 10, in three equal turns
  options.sample_seconds = 1e-2;
  calls.clear();
  race(kCase, {AttentionPass::kForward}, {fake(3e-4, &calls)}, at::kCPU, options);
  EXPECT_EQ(calls.back(), 34);  // one sample a turn, of 10 ms
  EXPECT_EQ(race(kCase, {AttentionPass::kForward}, {fake(1.0)}, at::kCPU, options)[0]
                .runs[0]
                .seconds.size(),
            1u);  // far too slow for more
  options.calls = 50;
  EXPECT_EQ(race(kCase, {AttentionPass::kForward}, {fake(1.0)}, at::kCPU, options)[0]
                .runs[0]
                .seconds.size(),
            51u);
}

TEST(BenchAttentionRace, EndsAtASignal) {
  {
    const SignalGuard guard;
    std::raise(SIGINT);
    EXPECT_THROW(race(kCase, {AttentionPass::kForward}, {fake(1e-3)}, at::kCPU, short_race()),
                 Interrupted);
  }
}

TEST(BenchAttentionRace, TakesAPeerInAnotherProcess) {
  const auto peer = [](const std::string& answer) {
    return compiled_contestant(
        {"sh", "-c", "echo ready; while read line; do echo '" + answer + "'; done"});
  };
  const auto trouble = [&](const AttentionContestant& contestant) {
    return race(kCase, {AttentionPass::kForward}, {contestant}, at::kCPU, short_race())[0]
        .runs[0]
        .trouble;
  };
  EXPECT_EQ(trouble(peer(R"({"error": "out of memory"})")), "OOM");
  EXPECT_EQ(trouble(peer(R"({"error": "no such thing"})")), "failed: no such thing");
  EXPECT_EQ(trouble(compiled_contestant({"sh", "-c", "echo ready; read line"})),
            "failed: the Python program ended");
  EXPECT_EQ(trouble(compiled_contestant({"sh", "-c", "exit 1"})),
            "refused: no Python with PyTorch there");
  EXPECT_EQ(trouble(compiled_contestant({"/no/such/program"})),
            "refused: no Python with PyTorch there");
}

}  // namespace
}  // namespace flashstep::report
