// For tests of answers: results made of tables that are written down, and the text that they give.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report::for_tests {

using Rows = std::vector<std::vector<measure::Cell>>;

inline measure::Table table_of(const std::vector<std::string>& columns, Rows rows,
                               const std::string& title = "") {
  measure::Table table;
  table.title = title;
  for (const std::string& name : columns)
    table.columns.push_back(measure::number_column(name, "", 2));
  for (auto& row : rows) table.add_row(std::move(row));
  return table;
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

// The sentences of an answer, those of a year's preset behind "[2025]".
inline std::string text_of(const Answer& answer) {
  std::string text;
  for (const AnswerPart& part : answer.parts) {
    if (!part.year.empty()) text += str("[", part.year, "] ");
    text += join(part.sentences, " ") + " ";
  }
  return text;
}

// The first question of this name (and year, where two have it).
inline const Question& question_of(const std::string& name, const std::string& year = "") {
  for (const Question& question : questions()) {
    if (question.name == name && std::string(question.years).find(year) != std::string::npos)
      return question;
  }
  throw std::invalid_argument("no question " + name);
}

inline std::string answer_text(const std::string& name, const std::vector<Result>& results,
                               const std::string& year = "") {
  return text_of(answer(question_of(name, year), results, {}));
}

#define EXPECT_SAYS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)
#define EXPECT_SAYS_NOT(text, words) EXPECT_EQ((text).find(words), std::string::npos) << (text)

}  // namespace flashstep::report::for_tests
