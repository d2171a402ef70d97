#include "flashstep/bench/turns.h"

#include <cmath>
#include <csignal>
#include <new>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/bench/test_turns.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

const TurnsCase kCase = {{{"size", 16}}, "16", {"forward", "backward"}};

// Answers with `seconds` for every call; the backward pass needs more memory than there is where
// that is asked for.
class Fake : public Implementation {
 public:
  Fake(double seconds, std::vector<int64_t>* calls, bool no_memory)
      : seconds_(seconds), calls_(calls), no_memory_(no_memory) {}
  void note(const std::string& pass, Record& record) const override {
    record.facts["checked"] = pass;
  }
  std::vector<double> turn(const std::string& pass, int64_t, int64_t samples,
                           int64_t calls) override {
    if (no_memory_ && pass == "backward") throw MachineError("CUDA out of memory");
    if (calls_ != nullptr) calls_->push_back(samples * calls);
    return std::vector<double>(static_cast<size_t>(samples), seconds_);
  }

 private:
  double seconds_;
  std::vector<int64_t>* calls_;
  bool no_memory_;
};

Candidate fake(double seconds, std::vector<int64_t>* calls = nullptr, bool no_memory = false) {
  return {"fake", true, [=] { return std::make_unique<Fake>(seconds, calls, no_memory); }};
}

Candidate refusing() {
  return {"refusing", false,
          []() -> std::unique_ptr<Implementation> { throw UserError("refused: too warm"); }};
}

size_t samples_of(double seconds, const TurnOptions& options) {
  return take_turns(kCase, {fake(seconds)}, at::kCPU, options)[0].series("seconds").size();
}

TEST(Turns, ARecordForEveryPassAndCandidate) {
  const auto records = take_turns(kCase, {fake(4e-4), fake(5e-4)}, at::kCPU, short_turns());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[2].text("pass"), "backward");
  EXPECT_EQ(records[2].what, "16, backward");
  EXPECT_EQ(records[2].text("checked"), "backward");
  EXPECT_EQ(records[3].series("seconds"), std::vector<double>(4, 5e-4));
}

// What errors become: Failure.OfAnException in record_test.cc.
TEST(Turns, TellsWhatWentWrong) {
  const auto records = take_turns(kCase, {refusing(), fake(1e-3)}, at::kCPU, short_turns());
  EXPECT_EQ(records[0].outcome.sentence(), "refused: too warm");
  EXPECT_TRUE(std::isnan(records[0].median("seconds")));
  EXPECT_FALSE(records[0].facts.contains("checked"));
  EXPECT_TRUE(records[1].outcome.measured());
}

TEST(Turns, APassThatFailsLeavesTheOthers) {
  const auto records = take_turns(kCase, {fake(1e-3, nullptr, true)}, at::kCPU, short_turns());
  EXPECT_TRUE(records[0].has("seconds"));
  EXPECT_FALSE(records[1].has("seconds"));
  EXPECT_EQ(records[1].outcome.word(), "OOM");
}

TEST(Turns, NobodyCanDoWhatCannotBePrepared) {
  const auto records = take_turns(kCase, {fake(1e-3), fake(1e-3)}, at::kCPU, short_turns(),
                                  [] { throw std::bad_alloc(); });
  ASSERT_EQ(records.size(), 4u);
  for (const Record& record : records) EXPECT_EQ(record.outcome.word(), "OOM");
}

// A call of 0.3 ms in a budget of 3 ms: 10 samples in turns, a few calls each when they are short.
TEST(Turns, SpendsItsBudget) {
  TurnOptions options;
  options.cell_seconds = 3e-3;
  options.warmup_seconds = 0;
  EXPECT_EQ(samples_of(3e-4, options), 12u);  // 10, in three equal turns
  options.sample_seconds = 1e-2;
  std::vector<int64_t> calls;
  take_turns(kCase, {fake(3e-4, &calls)}, at::kCPU, options);
  EXPECT_EQ(calls.back(), 34);              // one sample a turn, of 10 ms
  EXPECT_EQ(samples_of(1.0, options), 1u);  // far too slow for more
  options.calls = 50;
  EXPECT_EQ(samples_of(1.0, options), 51u);
}

TEST(Turns, EndsAtASignal) {
  const SignalGuard guard;
  std::raise(SIGINT);
  EXPECT_THROW(take_turns(kCase, {fake(1e-3)}, at::kCPU, short_turns()), Interrupted);
}

}  // namespace
}  // namespace flashstep::tools
