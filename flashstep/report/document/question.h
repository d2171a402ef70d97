// The questions of the course's handouts (Stanford CS336, Assignment 2, of 2024, 2025 and 2026), in
// our words, and the answers that the results give.
//
// No answer is written down: a function reads the tables and makes the sentences, so that other
// results say something else. Where nothing was measured it says what is missing.
#pragma once

#include <string>
#include <vector>

#include "flashstep/report/document/evidence.h"
#include "flashstep/report/document/measurement.h"

namespace flashstep::report {

// Sentences; none where the evidence is not there.
using Sentences = std::vector<std::string>;

struct Question {
  const char* name;     // the handout's, and the part: "nsys_profile (b)"
  const char* years;    // "2025 2026"
  const char* section;  // that it stands in
  const char* text;
  const char* needs;  // to be answered, if there is nothing: "fully sharded data parallelism"
  Sentences (*answer)(const Evidence& evidence);  // null: what it asks of is not built yet
  // Where one measurement of the section answers it: how its name begins ("step_peers").
  const char* measurement = "";
  // What its answer still lacks; with that it counts as not measured. Empty: nothing.
  const char* lacks = "";
};

const std::vector<Question>& questions();

// The parts of it, by room (answers_*.cc).
void add_step_questions(std::vector<Question>& questions);
void add_norm_questions(std::vector<Question>& questions);
void add_profile_questions(std::vector<Question>& questions);
void add_precision_questions(std::vector<Question>& questions);
void add_memory_questions(std::vector<Question>& questions);
void add_attention_questions(std::vector<Question>& questions);
void add_communication_questions(std::vector<Question>& questions);
void add_data_parallel_questions(std::vector<Question>& questions);
void add_sharding_questions(std::vector<Question>& questions);
void add_account_questions(std::vector<Question>& questions);
void add_further_questions(std::vector<Question>& questions);

struct AnswerPart {
  std::string year;     // of the preset that it is computed from; empty: the same for every year
  Sentences sentences;  // or "Not measured: needs X."
};

struct Answer {
  const Question* question = nullptr;
  bool measured = false;          // all that it asks
  std::vector<AnswerPart> parts;  // one for each year that has results of its own, the latest first
  std::vector<std::string> used;  // measurements that it is computed from
};

// `left_out` and results with a trouble say why there is no answer.
Answer answer(const Question& question, const std::vector<Result>& results,
              const std::vector<LeftOut>& left_out);

}  // namespace flashstep::report
