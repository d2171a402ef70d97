// The engine, with a shell script in the place of the program.
#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/detail/files.h"
#include "flashstep/report/command.h"
#include "flashstep/report/report.h"
#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

// good: a table. bad: a sentence and exit code 1. empty: nothing. slow: waits for a signal.
// Every call adds a line to "calls".
constexpr const char* kScript = R"sh(
cd "$(dirname "$0")"
echo "$*" >>calls
for last; do :; done
case $1 in
  good) echo '{
  "title": "T", "columns": [{"name": "a", "unit": "", "align": "right", "style": "fixed", "digits": 0}],
  "rows": [[1]], "notes": []}' >"$last/t.json" ;;
  files) mkdir "$last/sub"; echo x >"$last/sub/snapshot.pickle"; echo y >"$last/t.csv"
    cp report/template "$last/t.json" ;;
  bad) echo "something broke" >&2; exit 1 ;;
  killed) kill -9 $$ ;;
  make) echo made >"$last" ;;
  slow) trap 'exit 130' INT; echo waiting >&2; while :; do sleep 0.05; done ;;
esac
)sh";

class RunTest : public for_tests::FolderTest {
 protected:
  RunTest() {
    write_file(folder_ / "program", kScript);
    options_.directory = folder_ / "report";
    options_.program = {"/bin/sh", (folder_ / "program").string()};
    options_.version = {"commit", "sources"};
  }

  static Measurement measurement(const std::string& name) {
    return {.name = name + "_quick", .arguments = {name}, .seconds = 1, .section = "limits"};
  }

  std::vector<std::string> calls() const {
    std::ifstream in(folder_ / "calls");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line.substr(0, line.find(' ')));
    return lines;
  }

  RunOptions options_;
};

TEST_F(RunTest, KeepsResultsAndDoesNotMeasureTwice) {
  std::vector<double> done;
  options_.progress = [&](double now, double, const std::string&) { done.push_back(now); };
  std::vector<std::string> finished;
  options_.finished = [&](const Result& result) { finished.push_back(result.measurement); };
  const RunOutcome first = run_measurements({measurement("good")}, options_);
  EXPECT_EQ(first.measured, 1);
  EXPECT_EQ(finished, std::vector<std::string>{"good_quick"});
  EXPECT_TRUE(first.failed.empty());
  EXPECT_FALSE(done.empty());
  const StoredResults stored = read_results(options_.directory);
  ASSERT_EQ(stored.results.size(), 1u);
  EXPECT_EQ(stored.results[0].tables.at(0).table.title, "T");
  EXPECT_EQ(stored.results[0].made.command, "flashstep good");
  EXPECT_EQ(stored.results[0].section, "limits");
  EXPECT_EQ(run_measurements({measurement("good")}, options_).reused, 1);
  EXPECT_EQ(calls().size(), 1u);
  options_.version.sources = "other sources";
  EXPECT_EQ(run_measurements({measurement("good")}, options_).measured, 1);
  EXPECT_EQ(read_results(options_.directory).results.size(), 2u) << "earlier results are kept";
}

TEST_F(RunTest, WhatAnotherMachineMeasuredWillDoIfThatIsSaid) {
  options_.machine.driver_version = "580.1";
  run_measurements({measurement("good"), measurement("bad")}, options_);
  options_.machine.driver_version = "580.2";
  options_.any_machine = true;
  const RunOutcome outcome = run_measurements({measurement("good"), measurement("bad")}, options_);
  EXPECT_EQ(outcome.reused, 1);
  EXPECT_EQ(outcome.failed.size(), 1u) << "what failed is measured again";
  Measurement other = measurement("good");
  other.arguments.emplace_back("--otherwise");
  EXPECT_EQ(run_measurements({other}, options_).measured, 1) << "another command";
  options_.version.sources = "other sources";
  EXPECT_EQ(run_measurements({measurement("good")}, options_).measured, 1);
  options_.version.sources = "sources";
  options_.machine.driver_version = "580.3";
  options_.any_machine = false;
  EXPECT_EQ(run_measurements({measurement("good")}, options_).measured, 1) << "it was not said";
}

TEST_F(RunTest, BeginsNothingThatWouldEndTooLate) {
  Measurement longer = measurement("good");
  longer.name = "longer_quick";
  longer.seconds = 1000;
  options_.most_seconds = 100;
  const RunOutcome outcome = run_measurements({longer, measurement("good")}, options_);
  EXPECT_EQ(outcome.measured, 1) << "a shorter one follows";
  ASSERT_EQ(outcome.later.size(), 1u);
  EXPECT_SAYS(outcome.later[0], "longer_quick: expected to take");
  EXPECT_EQ(outcome.keys.size(), 2u);
  EXPECT_TRUE(outcome.failed.empty());
  options_.most_seconds = 0;
  const RunOutcome rest = run_measurements({longer, measurement("good")}, options_);
  EXPECT_EQ(rest.measured, 1);
  EXPECT_EQ(rest.reused, 1);
}

TEST_F(RunTest, AFailureIsAResultAndTheNextOneFollows) {
  const RunOutcome outcome = run_measurements(
      {measurement("bad"), measurement("killed"), measurement("empty"), measurement("good")},
      options_);
  ASSERT_EQ(outcome.failed.size(), 3u);
  EXPECT_SAYS(outcome.failed[0], "exit code 1: something broke");
  EXPECT_SAYS(outcome.failed[1], "as Linux does when memory runs out");
  EXPECT_SAYS(outcome.failed[2], "it wrote no table");
  EXPECT_EQ(outcome.measured, 1);
  EXPECT_EQ(read_results(options_.directory).results.size(), 4u);
  EXPECT_SAYS(read_file(options_.directory / "logs" / "bad_quick.txt"), "something broke");
  run_measurements({measurement("bad")}, options_);
  EXPECT_EQ(calls().back(), "bad") << "what failed is measured again";
}

TEST_F(RunTest, ADamagedResultIsSetAsideAndMeasuredAnew) {
  const RunOutcome first = run_measurements({measurement("good")}, options_);
  const fs::path file = result_file(options_.directory, "good_quick", first.keys.at(0));
  write_file(file, "half a resu");
  EXPECT_EQ(run_measurements({measurement("good")}, options_).measured, 1);
  EXPECT_EQ(read_file(file.string() + ".damaged"), "half a resu");
  EXPECT_TRUE(read_results(options_.directory).complaints.empty());
}

TEST_F(RunTest, InputsAreMadeOnce) {
  Measurement m = measurement("good");
  m.before = {{"make", "@DATA/input"}};
  run_measurements({m}, options_);
  EXPECT_EQ(read_file(options_.directory / "data" / "input"), "made\n");
  options_.version.sources = "other sources";
  run_measurements({m}, options_);
  EXPECT_EQ(calls(), (std::vector<std::string>{"make", "good", "good"}));
  m.before = {{"bad", "@DATA/never"}};
  EXPECT_SAYS(run_measurements({m}, options_).failed.at(0), "something broke");
}

TEST_F(RunTest, KeepsOnlyWhatTheResultDoesNotHold) {
  run_measurements({measurement("good")}, options_);
  EXPECT_TRUE(fs::is_empty(options_.directory / "runs"));
  write_file(options_.directory / "template", measure::to_json(for_tests::table_of({"a"}, {{1}})));
  run_measurements({measurement("files")}, options_);
  const Result result = read_results(options_.directory).results.at(0);  // "files" before "good"
  EXPECT_EQ(result.measurement, "files_quick");
  ASSERT_EQ(result.files.size(), 1u);
  EXPECT_SAYS(result.files[0], "sub/snapshot.pickle");
  EXPECT_EQ(read_file(options_.directory / result.files[0]), "x\n");
  const fs::path folder = (options_.directory / result.files[0]).parent_path().parent_path();
  EXPECT_FALSE(fs::exists(folder / "t.csv"));
}

TEST_F(RunTest, StopsAtASignalAndGoesOnLater) {
  const SignalGuard signals;
  bool sent = false;
  options_.progress = [&](double, double, const std::string& note) {
    if (note.find("waiting") == std::string::npos || sent) return;
    sent = true;
    raise(SIGINT);
  };
  const std::vector<Measurement> all = {measurement("good"), measurement("slow"),
                                        measurement("empty")};
  const RunOutcome outcome = run_measurements(all, options_);
  EXPECT_EQ(outcome.signal, SIGINT);
  EXPECT_EQ(outcome.measured, 1);
  EXPECT_TRUE(outcome.failed.empty()) << "what was stopped has not failed";
  EXPECT_EQ(calls(), (std::vector<std::string>{"good", "slow"}));
  EXPECT_EQ(read_results(options_.directory).results.size(), 1u);
}

TEST_F(RunTest, ACommandThatTakesTooLongIsEnded) {
  CommandOptions command;
  command.command = {"/bin/sh", "-c", "trap '' INT TERM; sleep 60"};
  command.most_seconds = 0.3;
  EXPECT_EQ(run_command(command).failure, "took more than 0.3 s");
}

}  // namespace
}  // namespace flashstep::tools
