#include "flashstep/report/document/question.h"

#include <algorithm>

#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

// Why a section has no result: the first measurement of it that failed or was left out; empty if
// there is none.
std::string reason(const std::string& section, const std::vector<Result>& results,
                   const std::vector<LeftOut>& left_out) {
  for (const Result& result : results) {
    if (result.section == section && !result.trouble.empty())
      return result.measurement + " " + result.trouble;
  }
  for (const LeftOut& out : left_out) {
    if (out.section == section) return out.why;
  }
  return "";
}

bool all_quick(const std::vector<std::string>& used) {
  return !used.empty() && std::all_of(used.begin(), used.end(), [](const std::string& name) {
    return name.ends_with("_quick");
  });
}

}  // namespace

const std::vector<Question>& questions() {
  static const std::vector<Question> all = [] {
    std::vector<Question> list;
    add_step_questions(list);
    add_profile_questions(list);
    add_precision_questions(list);
    add_memory_questions(list);
    add_attention_questions(list);
    add_communication_questions(list);
    add_data_parallel_questions(list);
    add_sharding_questions(list);
    add_account_questions(list);
    add_further_questions(list);
    return list;
  }();
  return all;
}

Answer answer(const Question& question, const std::vector<Result>& results,
              const std::vector<LeftOut>& left_out) {
  Answer answer;
  answer.question = &question;
  if (question.answer != nullptr) {
    const Evidence evidence(results, question.years);
    answer.sentences = question.answer(evidence);
    answer.used = evidence.used();
  }
  answer.measured = !answer.sentences.empty();
  if (!answer.measured) {
    answer.used.clear();
    const std::string why =
        question.answer == nullptr ? "" : reason(question.section, results, left_out);
    answer.sentences = {why.empty() ? str("Not measured: needs ", question.needs, ".")
                                    : str("Not measured: ", why, ".")};
  } else if (all_quick(answer.used)) {
    answer.sentences.emplace_back("(From the preset quick: smaller cases than the handout's.)");
  }
  return answer;
}

}  // namespace flashstep::report
