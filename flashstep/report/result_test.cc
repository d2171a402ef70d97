#include "flashstep/report/result.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;
using for_tests::result_of;
using for_tests::table_of;

using ResultTest = for_tests::FolderTest;

Result full_result() {
  Result result = result_of("ddp", "ddp_2025", {table_of({"a", "b"}, {{"x", NAN}, {1, 0.1}})});
  result.key = "0123456789abcdef";
  result.made.clocks = "SM 1980 MHz";
  result.made.seconds = 12.5;
  result.pictures.push_back({"map", for_tests::heat_map()});
  result.files = {"runs/x/trace.json"};
  return result;
}

TEST_F(ResultTest, ComesBackWhole) {
  const Result result = full_result();
  const Result back = result_from_json(to_json(result), "test");
  EXPECT_EQ(to_json(back), to_json(result));
  EXPECT_EQ(back.measurement, "ddp_2025");
  EXPECT_EQ(back.made.clocks, "SM 1980 MHz");
  EXPECT_EQ(back.made.seconds, 12.5);
  EXPECT_EQ(to_svg(back.pictures[0]), to_svg(result.pictures[0]));
  EXPECT_EQ(back.files, result.files);
}

TEST_F(ResultTest, DamagedFilesAndOtherVersionsAreSentences) {
  const std::string good = to_json(full_result());
  std::string other_version = good;
  other_version.replace(other_version.find("\"format\": 1"), 11, "\"format\": 9");
  fs::create_directories(folder_ / "results");
  for (const auto& [name, text] :
       {std::pair("a.json", good), std::pair("b.json", good.substr(0, good.size() / 2)),
        std::pair("c.json", other_version), std::pair("d.json", std::string()),
        std::pair("e.txt", std::string("no result, and none that looks like one"))}) {
    write_file(folder_ / "results" / name, text);
  }
  const StoredResults stored = read_results(folder_);
  EXPECT_EQ(stored.results.size(), 1u);
  ASSERT_EQ(stored.complaints.size(), 3u);
  EXPECT_SAYS(stored.complaints[0], "b.json");
  EXPECT_SAYS(stored.complaints[1], "format 9");
  for (const char* name : {"b.json", "c.json", "d.json"})
    EXPECT_TRUE(fs::exists(folder_ / "results" / name)) << "files are left as they are";
}

TEST_F(ResultTest, WhatIsNoFileIsNamed) {
  fs::create_directories(folder_ / "results" / "a.json");
  fs::create_symlink("nowhere", folder_ / "results" / "b.json");
  const StoredResults stored = read_results(folder_);
  ASSERT_EQ(stored.complaints.size(), 2u);
  EXPECT_SAYS(stored.complaints[0], "a.json, got a directory");
  EXPECT_SAYS(stored.complaints[1], "b.json, got no regular file");
}

TEST_F(ResultTest, TheKeyKnowsInputsCodeAndMachine) {
  measure::Machine machine;
  machine.processor = "one";
  const Measurement measurement{.name = "x", .arguments = {"bench", "x"}};
  const MeasuredVersion version{"c", "s"};
  const std::string key = key_of(measurement, version, machine);
  EXPECT_EQ(key, key_of(measurement, {"another commit", "s"}, machine)) << "the same sources";
  const Measurement longer{.name = "x", .arguments = {"bench", "x"}, .seconds = 1000};
  EXPECT_EQ(key, key_of(longer, version, machine)) << "an estimate is no input";
  const Measurement other{.name = "x", .arguments = {"bench", "x", "--more"}};
  EXPECT_NE(key, key_of(other, version, machine));
  EXPECT_NE(key, key_of(measurement, {"c", "t"}, machine));
  auto driver = machine, gpu = machine;
  driver.driver_version = "580";
  EXPECT_NE(key, key_of(measurement, version, driver));
  gpu.gpus.push_back({"NVIDIA H200", 1, 9, 0, 1});
  EXPECT_NE(key, key_of(measurement, version, gpu));
}

TEST_F(ResultTest, TheAskedForComesBeforeTheLatest) {
  const auto make = [](const char* key, const char* at, const char* failure = "") {
    Result result = full_result();
    result.key = key;
    result.made.measured_at = at;
    result.failure = failure;
    return result;
  };
  const std::vector<Result> results = {make("a", "2026-01-01"), make("b", "2026-03-01"),
                                       make("c", "2026-02-01"), make("d", "2026-04-01", "failed")};
  EXPECT_EQ(current(results, {"a"}).at(0).key, "a");
  EXPECT_EQ(current(results, {}).at(0).key, "b");
  EXPECT_EQ(current(results, {"d"}).at(0).key, "b") << "a failure hides no earlier result";
  EXPECT_EQ(current({make("d", "2026-04-01", "failed")}, {"d"}).at(0).key, "d");
}

TEST_F(ResultTest, CollectsWhatACommandWrote) {
  BenchReport report;
  report.table = table_of({"a"}, {{1}}, "First");
  report.runs = table_of({"a"}, {{1}, {2}}, "Runs");
  report.tables.push_back({"more", table_of({"b"}, {{3}}, "More")});
  report.pictures.push_back({"map", for_tests::heat_map()});
  save(report, (folder_ / "x").string());
  write_file(folder_ / "x_flame.svg", "<svg>flame</svg>");
  write_file(folder_ / "trace.json", "{\"traceEvents\": []}");
  write_file(folder_ / "memory.pickle", "bytes");
  const Result result = collect(folder_);
  ASSERT_EQ(result.tables.size(), 3u);
  EXPECT_EQ(result.tables[0].name, "x");
  EXPECT_EQ(result.tables[1].name, "x_more");
  EXPECT_EQ(result.tables[2].name, "x_runs");
  ASSERT_EQ(result.pictures.size(), 2u);
  EXPECT_EQ(to_svg(result.pictures[0]), "<svg>flame</svg>");
  EXPECT_EQ(caption_of(result.pictures[1]), "Map");
  EXPECT_EQ(result.files, (std::vector<std::string>{"memory.pickle", "trace.json"}));
}

}  // namespace
}  // namespace flashstep::tools
