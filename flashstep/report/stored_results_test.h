// For tests of reports: real results. Those of the stored H200 report, and tables of other runs
// on one, two and four H200 and on CPUs (stored/, their notes left out) as results of a report.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/report/question.h"

namespace flashstep::tools::for_tests {

// With a folder of its own.
class FolderTest : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_ / "";
};

inline std::filesystem::path source_folder() {
  const char* source = std::getenv("FLASHSTEP_SOURCE");
  return source == nullptr ? "." : source;
}
// A bundle of tests for other machines goes without the reports.
inline bool has_stored_results() {
  return std::filesystem::exists(source_folder() / "reports/report_h200_2026-11-22/results");
}

inline Result result_of(const std::string& section, const std::string& measurement,
                        std::vector<measure::Table> tables) {
  Result result;
  result.section = section;
  result.measurement = measurement;
  result.made.command = "flashstep something";
  result.made.machine = "a machine";
  result.made.measured_at = "2026-11-21 12:00:00 UTC";
  for (size_t i = 0; i < tables.size(); ++i)
    result.tables.push_back({str("table", i), std::move(tables[i])});
  return result;
}

inline const std::vector<Result>& stored_results() {
  static const std::vector<Result> all = [] {
    std::vector<Result> results =
        read_results(source_folder() / "reports/report_h200_2026-11-22").results;
    const char* tables[][3] = {{"ddp", "ddp_bf16_2025", "ddp_bf16"},
                               {"ddp", "ddp_fp32_2025", "ddp_fp32"},
                               {"sharding", "sharding_2025", "sharding"},
                               {"allreduce", "allreduce_2025", "allreduce_gloo"},
                               {"allreduce", "allreduce_nccl_2025", "allreduce_nccl"},
                               {"step", "step_peers_2025", "step_peers"},
                               {"matrix", "matrix", "matrix"},
                               {"tokenizer", "tokenizer", "tokenizer"},
                               {"norm", "norm_quick", "norm_quick"},
                               {"leaderboard", "leaderboard_2026", "leaderboard"},
                               {"sharding", "full_2026", "leaderboard"},
                               {"sharding", "full_work_2026", "leaderboard_work"},
                               {"memory", "recompute_2026", "step_recompute"}};
    for (const auto& [section, measurement, file] : tables) {
      const auto path = source_folder() / "flashstep/report/stored" / str(file, ".json");
      results.push_back(
          result_of(section, measurement, {measure::table_from_json(read_file(path), file)}));
      results.back().made = results.front().made;
      results.back().tables[0].name = section;
    }
    return results;
  }();
  return all;
}

using CellRows = std::vector<std::vector<measure::Cell>>;

inline measure::Table table_of(const std::vector<std::string>& columns, CellRows rows,
                               const std::string& title = "") {
  measure::Table table;
  table.title = title;
  for (const std::string& name : columns)
    table.columns.push_back(measure::number_column(name, "", 2));
  for (auto& row : rows) table.add_row(std::move(row));
  return table;
}

inline measure::HeatMap heat_map() {
  measure::HeatMap map;
  map.title = "Map";
  map.columns = map.rows = {"1"};
  map.values = {2};
  return map;
}

// The sentences of an answer, those of a year's preset behind "[2025]", and what is missing.
inline std::string text_of(const Answer& answer) {
  std::string text;
  for (const AnswerPart& part : answer.parts) {
    if (!part.year.empty()) text += str("[", part.year, "] ");
    text += join(part.finding.sentences, " ") + " ";
  }
  return answer.missing.empty() ? text : text + "Not measured: " + answer.missing + ". ";
}

// The first question of this name (and year, where two have it).
inline const Question& question_of(const std::string& name, const std::string& year = "") {
  for (const Question& question : questions()) {
    if (question.name == name && (year.empty() || join(question.years).find(year) != year.npos))
      return question;
  }
  throw std::invalid_argument("no question " + name);
}

inline std::string answer_text(const std::string& name, const std::vector<Result>& results) {
  return text_of(answer(question_of(name), results, {}));
}

#define EXPECT_SAYS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)
#define EXPECT_SAYS_NOT(text, words) EXPECT_EQ((text).find(words), std::string::npos) << (text)

}  // namespace flashstep::tools::for_tests
