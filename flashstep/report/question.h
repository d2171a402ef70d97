// The questions of courses' handouts (report/handouts/*.json), in our words, and the answers that
// the results give.
//
// No answer is written down: a function reads the tables (answers_*.cc), and forms are filled with
// what it finds (report/answers.json), so that other results say something else. Where nothing was
// measured it says what is missing.
#pragma once

#include <string>
#include <vector>

#include "flashstep/report/combine.h"
#include "flashstep/report/result.h"

namespace flashstep::tools {

struct Question {
  std::string name;                // the handout's, and the part: "nsys_profile (b)"
  std::vector<std::string> years;  // of the handouts that ask it; none: beyond them
  std::string section;             // that it stands in
  std::string title, question;
  std::string answer;  // the name of a function (combine.h); empty: it asks of what is not built
  std::string needs;   // to be answered: "a second machine"; empty: nothing in particular
  std::string measurement;  // where one of the section answers it: how its name begins
  int finding = 0;          // its place among the findings of the first page; 0: none
};

const std::vector<Question>& questions();
// Of a handout, which `source` names in the UserError for one that is damaged.
std::vector<Question> read_handout(std::string_view json, const std::string& source);

struct AnswerPart {
  std::string year;  // of the preset that it is computed from; empty: the same for every year
  Finding finding;
  std::vector<const Result*> used;
};

struct Answer {
  const Question* question = nullptr;
  std::vector<AnswerPart> parts;  // one for each year that has results of its own, the latest first
  std::string missing;            // "needs 2 GPUs", "was not run"; empty: nothing
  bool quick = false;             // from the preset quick alone

  bool measured() const { return !parts.empty(); }
};

// `left_out` and results that failed say why there is no answer.
Answer answer(const Question& question, const std::vector<Result>& results,
              const std::vector<LeftOut>& left_out);

}  // namespace flashstep::tools
