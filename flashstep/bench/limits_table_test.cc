#include "flashstep/bench/limits_table.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep::tools {
namespace {

measure::Limits limits_of(const std::string& device, bool busy) {
  measure::Limits limits;
  limits.measured_at = "2026-11-21 03:15 UTC";
  limits.busy = busy;
  limits.limits.push_back({device, "memory triad", /*rate=*/1e9, /*median_rate=*/1e9, "1 call"});
  return limits;
}

TEST(LimitsTable, NotesNameTheirDevicesWhereTheyDiffer) {
  const measure::Machine machine;
  const auto notes = [&](const std::vector<measure::Limits>& all) {
    return limits_table(machine, all).notes;
  };
  const auto quiet = notes({limits_of("cpu", false), limits_of("link", false)});
  ASSERT_GE(quiet.size(), 1u);
  EXPECT_TRUE(quiet[0].starts_with("Measured 2026-11-21 03:15 UTC and kept in ")) << quiet[0];
  const auto mixed =
      notes({limits_of("cpu", false), limits_of("cuda", true), limits_of("link", false)});
  ASSERT_GE(mixed.size(), 2u);
  EXPECT_TRUE(mixed[0].starts_with("cpu, link: Measured ")) << mixed[0];
  EXPECT_TRUE(mixed[1].starts_with("cuda: Other programs were running")) << mixed[1];
}

TEST(LimitsTable, SaysWhereTheyCouldNotBeKept) {
  measure::Limits limits = limits_of("cpu", false);
  limits.not_kept = "the disk is full";
  const auto notes = limits_table({}, {limits}).notes;
  ASSERT_GE(notes.size(), 1u);
  EXPECT_EQ(notes[0], "Measured 2026-11-21 03:15 UTC; could not be kept: the disk is full.");
}

}  // namespace
}  // namespace flashstep::tools
